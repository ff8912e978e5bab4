"""What the tests of whole clusters look at: a run's report, its checkpoints, how far it is."""

import json
from pathlib import Path
from typing import Any

from launching import Launch

from dtrain import checkpoints
from dtrain_cli.runs.report import read_report

ROOT = Path(__file__).parents[2]
DETERMINISTIC = (
    *("--workers", "1", "--ps", "2", "--no-evaluator"),
    *("--updates", "sync", "--set", "training.deterministic=true"),
)
"""Options of `launch`: two replicas whose results are the same bits in every run."""
DIGITS = str(ROOT / "examples" / "digits.py")
LINE = str(ROOT / "examples" / "linear_regression.py")
ESTIMATOR = str(ROOT / "examples" / "migrate_estimator.py")
WHEN_ALL_ARE_THERE = str(Path(__file__).parent / "when_all_are_there.py")
PACED = str(Path(__file__).parent / "paced_line.py")
LARGE = ("--width", "1000")
"""Makes a model of 4 MB of the program above."""
IN_SHARDS = ("--set", "training.partitioner={fixed_shards: 2}")
"""Options of `launch`: with 2 servers, each holds one half of every matrix."""


def report_of(run_dir: Path) -> dict[str, Any]:
    """What `dtrain status --json` prints of a run, made in this process."""
    return json.loads(json.dumps(read_report(run_dir)))  # type: ignore[no-any-return]


def tasks_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A report's tasks by name."""
    return {task["task"]: task for task in report["tasks"]}


def step_of(launch: Launch, task: str = "ps:0", attempt: int = 0) -> int:
    """How far a task is, in this attempt or a later one; 0 before."""
    path = launch.run_dir / "tasks" / task.replace(":", "-") / "status.json"
    try:
        status = json.loads(path.read_text())
    except FileNotFoundError:  # not yet, or no more: another attempt begins
        return 0
    return (status["step"] or 0) if status["attempt"] >= attempt else 0


def saved_steps(run_dir: Path) -> list[int]:
    """The steps of the checkpoints that are there and hold."""
    folder = run_dir / "checkpoints"
    return [found.step for found in checkpoints.list_checkpoints(folder)]


def succeeded(launch: Launch) -> None:
    """The launch ends with 0, and nothing is left of it."""
    assert launch.end() == 0, launch.err
    launch.wait_gone()
