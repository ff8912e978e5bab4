"""1,000 variables of 100 floats beside one of 100,000: milliseconds of one exchange with one server, on
either way.

The same bytes travel, after the same pause in which 1,000 pieces of 100 floats are computed: what differs is
the packing.
"""

import pytest
from benchmarks.cluster_run import PROGRAMS

PAIR = ("--workers", 1, "--ps", 1, "--no-evaluator", "--set", "training.chief_trains=false")


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_a_thousand_variables(cluster, beside, real, runs, transport):
    if not real and transport == "local":
        pytest.skip("a small exchange is that over gRPC: --real")
    steps = 500 if real else 2
    many, one = [], []
    for _ in range(runs):
        for variables, found in ((1000, many), (1, one)) if real else ((1000, many),):
            words = ["--model", "packed", "--variables", variables, "--steps", steps]
            run = cluster(
                *PAIR, "--set", f"training.transport={transport}", PROGRAMS / "train.py", *words
            ).end()
            found.append(run.said("worker:0", "exchange_ms"))
    promised = {"one variable": "<= 1.5"}
    beside(
        f"1,000 variables, {transport}",
        many,
        "ms",
        {"one variable": one},
        promised,
        result=[steps],
        note="100,000 floats",
    )
