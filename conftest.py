"""Fixtures of the tests and of the benchmarks."""

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from failed_execs import start_again
from hypothesis import HealthCheck, settings
from launching import Launcher
from row_by_row import NIGHT
from warm_commands import start_warm

# A test that passed passes again, also on a busy machine; `pytest --hypothesis-profile searching` draws other
# examples each time.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("searching", deadline=None)
settings.load_profile("repeatable")

start_again()
start_warm()
gc.disable()  # until all tests are collected: what is made meanwhile stays

LONG = (
    *("tests/clusters", "tests/hosts", "tests/chaos", "tests/simulation", "benchmarks", "tests/conformance"),
    *("tests/engines", "tests/cli/launch", "tests/security", "tests/examples", "tests/task"),
    *("tests/collectives", "tests/training"),
)
"""The folders whose files take long."""


LONG_S = 15.0
"""A test that takes longer has a reason: `@pytest.mark.long("why")`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with files that take long: else one of them would run last, beside processes that have ended. By
    day leave out what is for the night.
    """
    root = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, str]:
        path = item.path.relative_to(root).as_posix()
        place = next((place for place, folder in enumerate(LONG) if path.startswith(folder)), len(LONG))
        return place, path

    items.sort(key=place)
    for item in items:
        if (marker := item.get_closest_marker("night")) and not (NIGHT or config.getoption("--real", False)):
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: DTRAIN_NIGHT=1"))
        if marker := item.get_closest_marker("long"):
            item.user_properties.append(("long", marker.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that took long without a reason for it."""
    took_s: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and "long" not in dict(report.user_properties):
            took_s[report.nodeid] += report.duration
    too_long = [f"{took:5.1f} s {test}" for test, took in took_s.most_common() if took > LONG_S]
    if too_long:
        terminalreporter.section(f"over {LONG_S:.0f} s: make these shorter, or say why in a mark `long`")
        terminalreporter.line("\n".join(too_long))


def pytest_collection_finish() -> None:
    """Leave the modules and the thousands of tests out of every search for garbage: they stay to the end."""
    gc.freeze()
    gc.enable()


BYTECODE, STATE = pytest.StashKey[Path](), pytest.StashKey[Path]()


def _share_the_rewriting(config: pytest.Config) -> None:
    """Have each process of xdist begin to collect at another file, and read what the others have written.

    To rewrite the asserts of all tests takes 13 s of a processor, three quarters of collecting them.
    """
    paths, input_of_worker = config.getini("testpaths"), getattr(config, "workerinput", None)
    if input_of_worker is not None and config.args == paths:
        args = sorted(str(file) for path in paths for file in (config.rootpath / path).rglob("test_*.py"))
        worker = int(input_of_worker["workerid"].removeprefix("gw"))
        first = len(args) * worker // input_of_worker["workercount"]
        config.args[:] = args[first:] + args[:first]


def pytest_configure(config: pytest.Config) -> None:
    """Give tests a state folder of their own, where the secret of their user lies, and the interpreters that
    they start one for bytecode where PYTHONDONTWRITEBYTECODE keeps the tree free of it.

    Without the latter, each of the hundreds of processes would compile dtrain anew: a third of what a small
    launch takes. It stays for the next run, which then begins to test after half the time; what the programs
    of tests import does not.
    """
    _share_the_rewriting(config)
    config.stash[STATE] = state = Path(tempfile.mkdtemp(prefix="dtrain-state-"))
    os.environ["XDG_STATE_HOME"] = str(state)
    os.environ.pop("XDG_RUNTIME_DIR", None)
    if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
        kept = getattr(config, "cache", None)
        folder = kept.mkdir("bytecode") if kept else Path(tempfile.mkdtemp(prefix="dtrain-bytecode-"))
        config.stash[BYTECODE] = folder / Path(tempfile.gettempdir()).relative_to("/") if kept else folder
        folder.chmod(0o755)  # some tests run a command as another user
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folders, in the process that made them."""
    shutil.rmtree(config.stash[STATE], ignore_errors=True)
    if folder := config.stash.get(BYTECODE, None):
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        del os.environ["PYTHONPYCACHEPREFIX"]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Yield a launcher for runs that a module begins first, and that wait during its other tests."""
    launcher = Launcher(tmp_path_factory.mktemp("early"))
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Yield a launcher of real clusters in a folder of the test; it kills what a failing test leaves."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
