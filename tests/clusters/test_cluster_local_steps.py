"""Local steps on real processes: every example of every round counts once, whoever dies; what travels is one
H-th.

Each example has a weight of its own that grows by 1 with it, on the mean over the replicas of a round.
"""

import re
from pathlib import Path

import pytest
from clusters.watching import report_of, succeeded, tasks_of

COUNTED = str(Path(__file__).parent / "counted_examples.py")
EPOCHS, BATCHES, H = 4, 10, 4
ROUNDS = 3 * EPOCHS
"""Rounds of 4, 4 and 2 batches an epoch."""
PROGRAM = (COUNTED, "--epochs", str(EPOCHS), "--pace_s", "0.05")
WORDS = ("--workers", "2", "--ps", "2", "--no-evaluator", "--local-steps", str(H))
QUICK = tuple(
    word for role in ("chief", "worker", "ps") for word in ("--set", f"restart.{role}.backoff_s=0.1")
)
ASYNC = ("--updates", "async", "--set", "training.outer={learning_rate: 3, momentum: 0, delayed: true}")
"""Of three replicas each push moves the variables by a third of it, times three."""
RETRY = ("--backup-workers", "1", "--set", "training.on_stale=retry_same_batch")


def killed(*deaths):
    return (
        "--set",
        f"simulate.kill=[{', '.join(f'{{task: {task}, at_step: {step}}}' for task, step in deaths)}]",
    )


STORIES = {
    "a worker": killed(("worker:1", 4)),
    "a worker and the chief": killed(("worker:0", 2), ("chief:0", 7)),
    "a server": killed(("ps:1", 5)),
    "a worker, with a backup": (*RETRY, *killed(("worker:1", 4))),
    "a worker that does not come back": (
        *("--set", "restart.worker.policy=never", "--set", "training.too_few=shrink"),
        *killed(("worker:0", 3)),
    ),
    "a worker, by speed": (
        *("--set", f"training.local_steps={{by_speed: {H}}}", "--set", "simulate.slow.worker:0=4"),
        *killed(("worker:1", 4)),
    ),
    "a worker in the second fit": killed(("worker:1", ROUNDS + 3)),
    "the chief in async": (*ASYNC, *killed(("chief:0", 3))),
}


def fits_of(name):
    return 2 if "second fit" in name else 1


def pace_of(name):
    """Without waiting for each other three replicas make all rounds in a second, and none may be over too soon."""
    return ("--pace_s", "0.2") if "async" in name else ()


@pytest.fixture(scope="module", autouse=True)
def told(early):
    return {
        name: early.start(*WORDS, *QUICK, *story, *PROGRAM, "--fits", str(fits_of(name)), *pace_of(name))
        for name, story in STORIES.items()
    }


@pytest.mark.parametrize("name", STORIES)
def test_every_example_counts_once_whoever_dies(name, told):
    launch = told[name]
    succeeded(launch)
    report = report_of(launch.run_dir)
    assert report["global_step"] == ROUNDS * fits_of(name)
    assert launch.err.count("killed by SIGKILL") >= " ".join(STORIES[name]).count("at_step")
    [text] = re.findall(r"counts (.*)", launch.out)
    expected = [EPOCHS * fits_of(name)] * len(text.split())
    assert [float(count) for count in text.split()] == pytest.approx(expected, rel=1e-4)


def test_the_status_counts_rounds_and_their_steps(told):
    launch = told["a worker"]
    succeeded(launch)
    report = report_of(launch.run_dir)
    chief = tasks_of(report)["chief:0"]
    assert (chief["step"], chief["local_steps"]) == (ROUNDS, BATCHES * EPOCHS)
    assert report["local_steps"] == BATCHES * EPOCHS
