"""The 784-512-512-10 MLP at batch 64, asynchronous, 2 workers, 2 servers: 2.7 MB each way a step.

Steps per second of both workers together, beside gRPC streams that carry the bytes and compute nothing, and
beside the same program of TensorFlow's ParameterServerStrategy.
"""

import re

import pytest
from benchmarks.cluster_run import BARE_STREAMS, BOTH_WORKERS, PROGRAMS, TWO_WORKERS

BYTES = (2_670_000, 4_000)
"""By round robin the kernels lie on ps:0, the biases on ps:1."""


def test_steps_per_second(cluster, beside, real, runs, tensorflow_servers):
    if not real:
        pytest.skip("its programs are those of test_line_speed.py: --real")
    steps, every = 3000, 50
    ours, bare, tensorflow = [], [], []
    for _ in range(runs):
        run = cluster(
            *TWO_WORKERS, PROGRAMS / "train.py", "--model", "mlp", "--steps", steps, "--every", every
        ).end()
        assert run.status["global_step"] == steps
        ours.append(run.steps_per_s(*BOTH_WORKERS))
        words = ["--steps", steps // 2, "--every", every, "--bytes", *BYTES]
        bare.append(cluster(*BARE_STREAMS, *words).end().steps_per_s(*BOTH_WORKERS))
        tensorflow += tensorflow_servers("--model", "mlp", "--steps", 500)
    others = {"bare grpc streams": bare, "TensorFlow": tensorflow}
    beside("mlp", ours, "steps/s", others, {"TensorFlow": ">= 4"}, promised=">= 150", result=steps)


def test_the_gradient_alone(cluster, figure, real):
    """One process, one thread: what each of the two workers could do at most."""
    alone = ("--no-evaluator", "--workers", 0, "--ps", 1)
    run = cluster(*alone, PROGRAMS / "gradient_alone.py", "--steps", 300 if real else 2).end()
    milliseconds, losses = re.search(
        r"^gradient ([\d.]+) ms, losses (.*)$", run.log("chief:0"), re.M
    ).groups()
    numpy_4_2 = {"plain numpy": 4.2, "TensorFlow with SGD": 5.7}
    made = figure("mlp, gradient alone", [float(milliseconds)], "ms", versus=numpy_4_2, result=losses)
    assert made.median > 0
