import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from benchmarks.cluster_run import PEERS, TWO_WORKERS, ClusterRun
from benchmarks.figures import Figure
from launching import warm_fork_server
from warm_commands import COLD

FIGURES = pytest.StashKey[list[Figure]]()
BY_DAY = {
    *("test_bookkeeping.py", "test_compare.py", "test_decision_cost.py", "test_server_memory.py"),
    *("test_idle_cluster.py", "test_line_speed.py"),
}
"""They test a promise without --real too, or are an example of all others, which only measure: programs of those run
once, small, by night.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real", action="store_true", help="measure with real inputs, and print figures")
    parser.addoption("--runs", type=int, help="how often each figure is measured (--real)")
    parser.addoption("--json", type=Path, metavar="FILE", help="append figures to FILE, a line each (--real)")


def pytest_configure(config: pytest.Config) -> None:
    """Measure commands as a user starts them."""
    if config.getoption("--real", default=False):
        os.environ[COLD] = "1"


@pytest.fixture(autouse=True)
def any_instructions(monkeypatch: pytest.MonkeyPatch, real: bool) -> None:
    """Let numpy use the instructions that peers use where something is measured: nothing tells OpenBLAS that
    this is another processor (OPENBLAS_CORETYPE).
    """
    for name in [name for name in os.environ if real and name.startswith("OPENBLAS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def real(request: pytest.FixtureRequest) -> bool:
    """Whether to measure; else the benchmark is a test with a small input."""
    return bool(request.config.getoption("--real", default=False))


@pytest.fixture
def runs(request: pytest.FixtureRequest, real: bool) -> int:
    """How often to measure."""
    return (request.config.getoption("--runs") or getattr(request, "param", 5)) if real else 1


@pytest.fixture
def figure(
    request: pytest.FixtureRequest, real: bool, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Figure]:
    """Makes a Figure; with --real it is printed now and stands in the table at the end."""

    def add(*args: object, **kwargs: object) -> Figure:
        made = Figure(*args, benchmark=request.path.name, **kwargs)  # type: ignore[arg-type]
        if real:
            request.config.stash.setdefault(FIGURES, []).append(made)
            with capsys.disabled():
                print(f"\n{made.to_json()}", flush=True)
            if (file := request.config.getoption("--json")) is not None:
                with file.open("a") as lines:
                    lines.write(f"{made.to_json()}\n")
        return made

    return add


@pytest.fixture
def beside(figure: Callable[..., Figure]) -> Callable[..., Figure]:
    """Makes a Figure of runs that alternated with others', and one of the ratios, pair by pair, to each of
    those that was run.

    `ratios` says, by the other's name, what was promised of one.
    """

    def add(
        name: str,
        runs: Sequence[float],
        unit: str,
        others: Mapping[str, Sequence[float]],
        ratios: Mapping[str, str],
        **facts: object,
    ) -> Figure:
        run = {other: theirs for other, theirs in others.items() if theirs}
        medians = {other: statistics.median(theirs) for other, theirs in run.items()}
        made = figure(name, runs, unit, versus=medians, **facts)
        for other, theirs in run.items():
            pairs = [ours / their for ours, their in zip(runs, theirs, strict=True)]
            figure(
                f"{name} / {other}",
                pairs,
                "x",
                ratios.get(other),
                note=f"{other}: {medians[other]:.4g} {unit}",
            )
        return made

    return add


@pytest.fixture
def tensorflow_servers(
    cluster: Callable[..., ClusterRun], tensorflow: str | None
) -> Callable[..., list[float]]:
    """Runs peers/tensorflow_servers.py; its steps/s, as a list that is empty without TensorFlow."""

    def run(*words: object) -> list[float]:
        if tensorflow is None:
            return []
        return [
            cluster(*TWO_WORKERS, "--", tensorflow, PEERS / "tensorflow_servers.py", *words)
            .end()
            .said("chief:0", "steps/s")
        ]

    return run


@pytest.fixture
def tensorflow(real: bool) -> str | None:
    """The Python that has TensorFlow (tests/peers/requirements-tf.txt); None without one, and where nothing
    is measured.
    """
    return os.environ.get("DTRAIN_TF_PYTHON") if real else None


@pytest.fixture
def torch(real: bool) -> str | None:
    """The Python that has PyTorch, likewise."""
    return os.environ.get("DTRAIN_TORCH_PYTHON") if real else None


@pytest.fixture
def cluster(
    tmp_path: Path, real: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ClusterRun]]:
    """Launches a cluster below a folder of the test's own, whose words follow `dtrain launch`; nothing is
    left of it.
    """
    if not real:
        monkeypatch.setenv("DTRAIN_FORK_SERVER", warm_fork_server())
    started: list[ClusterRun] = []

    def launch(*words: object, through: Sequence[object] = ()) -> ClusterRun:
        started.append(ClusterRun(tmp_path / f"run-{len(started)}", words, through))
        return started[-1]

    yield launch
    for run in started:
        run.kill()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Measure in one process, with nothing beside it; tests run in several."""
    if config.getoption("--real", default=False):
        config.option.numprocesses = 0
        config.option.dist = "no"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in BY_DAY:
            item.add_marker(pytest.mark.night("it only measures"))
    if config.getoption("--real", default=False):
        for item in items:
            item.add_marker(pytest.mark.timeout(1800))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for made in config.stash.get(FIGURES, []):
        terminalreporter.write_line(made.to_row())
