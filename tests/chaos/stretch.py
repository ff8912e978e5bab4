"""A stretch of a run: one `dtrain launch` with its faults, up to its end or to a `dtrain stop`; a story is
one or two of them.
"""

import json
import re
import signal
from dataclasses import dataclass

from clusters.watching import step_of
from launching import wait_until

STOPPED = (143, -signal.SIGTERM)
"""The second where the order comes when the run has just ended; to a shell they are the same."""
RESTARTS = [f"restart.{role}={{max: 9, backoff_s: 0.1}}" for role in ("chief", "worker", "ps")]


@dataclass(frozen=True)
class Join:
    """A worker that joins a run, `dtrain worker --join`.

    Attributes:
        at_step: when it is started.
        killed_at: the step at which it is killed; None: it stays to the end.
    """

    at_step: int
    killed_at: int | None = None

    def __str__(self):
        return f"joined at step {self.at_step}" + (f" to {self.killed_at}" if self.killed_at else "")


@dataclass(frozen=True)
class Stretch:
    """One launch.

    Attributes:
        options: of the launch.
        settings: what `--set` is given, faults included.
        stop_at: the step at which it is stopped; None: it goes on to its end.
        joins: workers that join it, in the order of their steps.
    """

    options: tuple[str, ...]
    settings: tuple[str, ...]
    stop_at: int | None = None
    joins: tuple[Join, ...] = ()

    def words(self):
        return (*self.options, *_set(self.settings))

    def __str__(self):
        end = "".join(f", {join}" for join in self.joins)
        end += "" if self.stop_at is None else f", stopped at step {self.stop_at}"
        return (
            " ".join(word if re.fullmatch(r"[\w=.:/-]+", word) else f"'{word}'" for word in self.words())
            + end
        )


def tell(launcher, stretches, program, name="run"):
    """Run the stretches one after the other, each but the first with `--resume`; return the run directory."""
    run_dir = launcher.folder / name
    for number, stretch in enumerate(stretches):
        resume = ["--resume"] if number else []
        words = (
            "--no-evaluator",
            *resume,
            "--run-dir",
            str(run_dir),
            *_set(RESTARTS),
            *stretch.words(),
        )
        status = run_dir / "tasks" / "chief-0" / "status.json"
        status.unlink(missing_ok=True)  # a step of the launch before is none of this one
        launch = launcher.start(*words, *program, run_dir=run_dir)
        joined = _join(launcher, launch, stretch.joins, program)
        if stretch.stop_at is not None:
            _until(launch, stretch.stop_at, "it is stopped")
            launcher.dtrain("stop", str(run_dir)).end()
        code = launch.end()
        for join, worker in joined:
            _see_off(launch, join, worker)
        print(launch.err, flush=True)
        assert code == 0 or (stretch.stop_at is not None and code in STOPPED), (
            f"exit code {code}\n{launch.out}"
        )
        assert "PeerRefusedError" not in launch.err, "no server may refuse a task of the run"
        launch.wait_gone()
    return run_dir


def _join(launcher, launch, joins, program):
    """Let workers join a launch, and kill those that are not to stay."""
    joined = []
    todo = [(join.at_step, join, False) for join in joins]
    todo += [(join.killed_at, join, True) for join in joins if join.killed_at is not None]
    for step, join, is_killed in sorted(todo, key=lambda each: each[0]):
        if not _until(launch, step, str(join)):
            break  # it has ended before
        if is_killed:
            next(worker for other, worker in joined if other is join).send(signal.SIGKILL)
        else:
            joined.append((join, launcher.dtrain("worker", "--join", str(launch.run_dir), *program)))
    return joined


def _see_off(launch, join, worker):
    """Wait for the end of a worker that joined; one that has not by the run's end is killed."""
    statuses = [json.loads(path.read_text()) for path in launch.run_dir.glob("tasks/*/status.json")]
    if worker.process.poll() is None and not {status["pid"] for status in statuses} & set(worker.pids()):
        worker.send(signal.SIGKILL)
    code = worker.end()
    print(f"{join}: exit code {code}\n{worker.err}", flush=True)
    expected = (0, *STOPPED, -signal.SIGKILL)
    late = code == 1 and "cannot be joined: its state is" in worker.err
    assert late or code in expected, f"{join}: expected one of the exit codes {expected}, found {code}"
    worker.wait_gone()


def _until(launch, step, what):
    """Wait until a launch has come to a step; return whether it still runs."""
    wait_until(lambda: launch.process.poll() is not None or step_of(launch, "chief:0") >= step, what)
    return launch.process.poll() is None


def _set(settings):
    return [word for setting in settings for word in ("--set", setting)]
