"""Y = 2X + 10, asynchronous, 2 workers, 2 servers: the smallest step there is, so all of it is dtrain's own.

Steps per second of both workers together, beside gRPC streams that carry as many bytes and do nothing else,
and beside the same program of TensorFlow's ParameterServerStrategy.
"""

import re

import pytest
from benchmarks.cluster_run import BARE_STREAMS, BOTH_WORKERS, PROGRAMS, TWO_WORKERS


def test_steps_per_second(cluster, beside, real, runs, tensorflow_servers):
    steps = 20_000 if real else 60
    ours, bare, tensorflow = [], [], []
    for _ in range(runs):
        run = cluster(*TWO_WORKERS, PROGRAMS / "train.py", "--model", "line", "--steps", steps).end()
        assert run.status["global_step"] == steps
        ours.append(run.steps_per_s(*BOTH_WORKERS))
        words = ["--steps", steps // 2, "--bytes", 100, 100]
        bare.append(cluster(*BARE_STREAMS, *words).end().steps_per_s(*BOTH_WORKERS))
        tensorflow += tensorflow_servers("--model", "line", "--steps", 2000)
    learned = round(float(re.search(r"^sum ([-\d.]+)$", run.log("chief:0"), re.M)[1]), 1)
    others = {"bare grpc streams": bare, "TensorFlow": tensorflow}
    beside(
        "line", ours, "steps/s", others, {"TensorFlow": ">= 15"}, promised=">= 1000", result=[steps, learned]
    )
    assert learned == 12 if real else 0 < learned < 12


def test_what_is_learned(cluster, figure, real):
    if not real:
        pytest.skip("tests/examples trains it as well: --real")
    run = cluster(*TWO_WORKERS, "examples/linear_regression.py", "--max_steps", 120_000).end()
    weight, bias = map(
        float,
        re.search(r"weight ([-\d.]+) \(true: 2\), bias ([-\d.]+) \(true: 10\)", run.log("chief:0")).groups(),
    )
    figure("line, error of weight", [abs(weight - 2)], "", "<= 0.05", result=round(weight))
    figure("line, error of bias", [abs(bias - 10)], "", "<= 0.1", result=round(bias))
    assert (weight, bias) == pytest.approx((2, 10), abs=0.2)
