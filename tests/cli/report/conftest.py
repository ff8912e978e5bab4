"""A told run that has everything that a report shows, and one that has been laid beside it."""

import pytest
from cli.report.told_runs import ToldRun, status

from dtrain.runs.trial_reports import EVALUATED, TRAINED
from dtrain_cli.runs.history import read_story
from dtrain_cli.runs.index import find_run

RATES = {"chief:0": 100.0, "worker:0": 50.0}
LEDGER = {
    "share": 0.5,
    "allocated_s": 40.0,
    "seconds": {"good": 20.0, "start": 0.0, "input": 4.0, "send": 6.0, "wait": 10.0, "down": 0.0},
    "waited_for": {"ps:0": 8.0, "worker:0": 2.0},
    "final": True,
    "tasks": [
        {
            "task": "chief:0",
            "seconds": {"good": 15.0, "input": 0.0, "send": 5.0, "wait": 0.0},
            "waited_for": {},
        },
        {
            "task": "worker:0",
            "seconds": {"good": 5.0, "input": 4.0, "send": 1.0, "wait": 10.0},
            "waited_for": {"ps:0": 8.0},
        },
    ],
}


def tell(directory, name="digits", factor=1.0, **ends):
    """Tell a run of 20 seconds: a step a second, and a death that rolls back 5 of them."""
    with ToldRun(directory, name).clock() as run:
        for task in (*RATES, "ps:0"):
            run.event(0.0, "started", task=task, attempt=0, pid=1)
        run.event(0.0, "up")
        for second in range(1, 21):
            step = second if second <= 10 else second - 5
            statuses = [
                status(
                    task,
                    step=step,
                    loss=factor / step,
                    examples_per_s=rate,
                    waiting_share=0.25,
                    input_share=0.125,
                    staleness_counts={0: second, 2: second},
                    staleness_mean=1.0,
                )
                for task, rate in RATES.items()
            ]
            run.heard(float(second), step, *statuses)
            if second == 10:
                run.event(10.25, "chaos", task="ps:0", attempt=0, action="kill")
                run.event(10.25, "exited", task="ps:0", attempt=0, status=-9)
                run.event(10.5, "started", task="ps:0", attempt=1, pid=3)
                run.event(10.75, "rolled back", steps=5, step=5)
            if second in (5, 20):
                run.report(second, step, TRAINED, loss=factor / step, accuracy=step / 20)
                run.report(second, step, EVALUATED, loss=2 * factor / step, accuracy=step / 40)
        run.event(20.5, "stopping", because="succeeded")
        run.event(20.6, "exited", task="ps:0", attempt=1, status=143)
        run.event(20.75, "ended", state="succeeded", exit_code=0)
        return run.end([*statuses, status("ps:0")], **ends)


@pytest.fixture
def story_of(tmp_path):
    """Read runs by their directories below a folder of the test."""

    def read(*names):
        return read_story([find_run(str(tmp_path / name), tmp_path) for name in names])

    return read
