"""The main job: `dtrain launch examples/digits.py`, the default cluster on real data."""

import re

import pytest


@pytest.mark.parametrize("runs", [20], indirect=True)
def test_digits(cluster, figure, real, runs):
    if not real:
        pytest.skip("tests/examples trains it as well: --real")
    jobs = [cluster("examples/digits.py").end() for _ in range(runs)]
    accuracies = [float(re.search(r"held-out accuracy ([\d.]+)", job.log("chief:0"))[1]) for job in jobs]
    reached = sum(accuracy >= 0.97 for accuracy in accuracies)
    accuracy = figure(
        "digits accuracy",
        accuracies,
        "",
        ">= 0.97",
        result=[round(min(accuracies), 1)],
        note=f"{reached} of {runs} reach 0.97",
    )
    figure(
        "digits whole command",
        [job.wall_s for job in jobs],
        "s",
        "<= 15",
        result=[job.status["global_step"] for job in jobs],
    )
    assert 0.1 < accuracy.median <= 1
    assert all(job.status["evaluation"]["global_step"] == job.status["global_step"] for job in jobs)
