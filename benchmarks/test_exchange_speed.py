"""Parameters that are pushed and pulled whole each step, next to nothing computed: the data path alone.

On 2 workers and 2 servers, asynchronous: steps per second of both workers together, beside the same under
TensorFlow's ParameterServerStrategy. On 1 worker and 1 server over gRPC, which is what two hosts use:
milliseconds of one exchange, beside a raw TCP socket whose server receives all, applies, sends all, and
beside one unary gRPC message each way; and over a link of 1 Gbit/s with 40 ms of round trip.
"""

import sys

import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS

WORKERS = ("worker:0", "worker:1")
PAIR = ("--workers", 1, "--ps", 1)
GRPC = (*PAIR, "--no-evaluator", "--set", "training.chief_trains=false", "--set", "training.transport=grpc")


@pytest.mark.parametrize(("megabytes", "steps", "tensorflow_steps"), [(32, 200, 100), (128, 60, 30)])
def test_steps_per_second(
    cluster, beside, real, runs, tensorflow_servers, megabytes, steps, tensorflow_steps
):
    if not real:
        pytest.skip("a small exchange is that over gRPC: --real")
    ours, tensorflow = [], []
    for _ in range(runs):
        words = ["--model", "bytes", "--megabytes", megabytes, "--steps", steps, "--every", 2]
        run = cluster(*TWO_WORKERS, PROGRAMS / "train.py", *words).end()
        assert run.status["global_step"] == steps
        ours.append(run.steps_per_s(*WORKERS))
        tensorflow += tensorflow_servers(
            "--model", "bytes", "--megabytes", megabytes, "--steps", tensorflow_steps
        )
    beside(
        f"{megabytes} MB",
        ours,
        "steps/s",
        {"TensorFlow": tensorflow},
        {"TensorFlow": ">= 4"},
        result=[megabytes, steps],
    )


def test_32_megabytes_over_grpc(cluster, beside, real, runs):
    megabytes, steps = (32, 50) if real else (4, 2)
    ours, bare = [], {"raw socket": [], "unary message": []}
    for _ in range(runs):
        words = ["--model", "bytes", "--megabytes", megabytes, "--steps", steps]
        ours.append(cluster(*GRPC, PROGRAMS / "train.py", *words).end().said("worker:0", "exchange_ms"))
        for (way, found), form in zip(bare.items(), ("socket", "unary"), strict=True):
            words = ["--way", form, "--bytes", megabytes * 1_000_000, "--steps", steps]
            command = [
                "--set",
                "cluster.chief=0",
                "--",
                sys.executable,
                PROGRAMS / "bare_exchange.py",
                *words,
            ]
            run = cluster(*PAIR, *command).end()
            assert run.said("worker:0", "value") == pytest.approx(-0.001 * steps), way
            found.append(run.said("worker:0", "exchange_ms"))
    promised = {"raw socket": "<= 2", "unary message": "<= 0.5"}
    beside(
        "32 MB over grpc", ours, "ms", bare, promised, result=[megabytes, steps], note="send, apply, receive"
    )


def test_smallest_step_over_grpc(cluster, figure, real, runs):
    if not real:
        pytest.skip("a small exchange is that of 32 MB: --real")
    steps = 5000
    words = ["--model", "bytes", "--megabytes", 0, "--steps", steps]
    clusters = [cluster(*GRPC, PROGRAMS / "train.py", *words).end() for _ in range(runs)]
    ours = [run.said("worker:0", "exchange_ms") for run in clusters]
    made = figure(
        "4 bytes over grpc", ours, "ms", "<= 0.4", result=[run.said("chief:0", "sum") for run in clusters[:1]]
    )
    assert made.median > 0


def test_32_megabytes_over_a_long_link(cluster, beside, real, runs):
    megabytes, steps = (32, 9) if real else (1, 2)
    found = {"grpc": [], "socket": []} if real else {"grpc": []}
    for _ in range(runs):
        for way, milliseconds in found.items():
            words = ["--way", way, "--bytes", megabytes * 1_000_000, "--steps", steps]
            command = ["--set", "cluster.chief=0", "--", sys.executable, PROGRAMS / "long_link.py", *words]
            run = cluster(*PAIR, *command).end()
            assert run.said("worker:0", "value") == pytest.approx(-0.001 * steps), way
            milliseconds.append(run.said("worker:0", "exchange_ms"))
    note = f"{2 * megabytes * 8} ms is what 1 Gbit/s takes"
    beside(
        "32 MB over 40 ms of network",
        found["grpc"],
        "ms",
        {"raw socket": found.get("socket", [])},
        {},
        result=[megabytes],
        note=note,
    )
