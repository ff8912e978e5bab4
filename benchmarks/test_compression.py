"""What compression costs in accuracy, and what it saves in time where links are narrow: the digits, every
form in turn.

On one host the network is no limit, so links are simulated: 100 Mbit/s and 1 ms between every worker and
every server, both ways.
"""

import re
from statistics import median

import pytest
from benchmarks.test_straggler import training_s

FORMS = ("none", "bf16", "fp16")
LINKS = ", ".join(
    f"{{between: [worker:{w}, ps:{s}], latency_ms: 1, bandwidth_mbit_s: 100}}" for w in (0, 1) for s in (0, 1)
)
NARROW = ("--updates", "sync", "--set", "training.chief_trains=false", "--set", f"simulate.network=[{LINKS}]")


def accuracy(run):
    """Of the model that is the result of a run, on the digits held out."""
    return float(re.search(r"held-out accuracy ([\d.]+)", run.log("chief:0"))[1])


def worker(run):
    """What the status says of one that is not the chief."""
    return next(task for task in run.status["tasks"] if task["task"] == "worker:0")


@pytest.mark.parametrize("runs", [10], indirect=True)
def test_digits_with_and_without(cluster, beside, real, runs):
    if not real:
        pytest.skip("a short run is that over narrow links: --real")
    steps, found = 2000, {form: [] for form in FORMS}
    for seed in range(runs):
        for form in FORMS:
            words = (
                "--no-evaluator",
                "--set",
                f"training.compression={form}",
                "--set",
                f"training.seed={seed}",
            )
            found[form].append(accuracy(cluster(*words, "examples/digits.py", "--steps", steps).end()))
    assert all(0 < each <= 1 for accuracies in found.values() for each in accuracies)
    for form in FORMS[1:]:
        others = {"none": found["none"]}
        beside(
            f"digits: {form}",
            found[form],
            "",
            others,
            {},
            note=f"median {median(found['none']):.4f} without compression",
        )


@pytest.mark.parametrize("runs", [3], indirect=True)
def test_digits_over_narrow_links(cluster, figure, real, runs):
    steps, found = 1000 if real else 6, {form: [] for form in FORMS}
    for _ in range(runs):
        for form in FORMS if real else FORMS[-1:]:
            words = (
                "--no-evaluator",
                *NARROW,
                "--set",
                f"training.compression={form}",
                "examples/digits.py",
                "--steps",
                steps,
            )
            found[form].append(cluster(*words).end())
    seconds = {form: [training_s(run) for run in done] for form, done in found.items()}
    assert {run.status["global_step"] for done in found.values() for run in done} == {steps}
    for form, done in found.items() if real else ():
        sent, received = (
            median(worker(run)[way] for run in done) / steps / 1000
            for way in ("bytes_sent", "bytes_received")
        )
        note = (
            f"accuracy {median(map(accuracy, done)):.4f}; {sent:.0f} kB sent, {received:.0f} kB received "
            "a step"
        )
        figure(
            f"100 Mbit/s: {form}",
            seconds[form],
            "s",
            versus={"none": median(seconds["none"])},
            result=[steps],
            note=note,
        )
