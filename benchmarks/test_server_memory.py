"""A server of one large variable: what it holds beside the variable and its slots, at full speed and ten
times too slow.

Memory is counted as PSS, sampled while training is under way; beside it in the same run a server that holds
next to nothing shows what a server costs anyhow.
"""

import contextlib
import statistics
import time

import psutil
import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS

SAMPLE_S = 0.01
CREDIT_MB = 20
"""A connection over gRPC: 4 MiB each way that a peer may send before it is read, and chunks of 2 MiB on their
way.
"""


def sampled_megabytes(run, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    """(when, PSS of each task) while a run trains, by the clock of worker:0."""
    samples = []
    while run.under_way and not all(run.task(name).get("pid") for name in names):
        time.sleep(SAMPLE_S)
    processes = [psutil.Process(run.task(name)["pid"]) for name in names]
    with contextlib.suppress(psutil.Error):
        while run.under_way:
            samples.append(
                (time.monotonic(), *(process.memory_full_info().pss / 1e6 for process in processes))
            )
            time.sleep(SAMPLE_S)
    marks = run.end().marks("worker:0")
    training = [sample for sample in samples if marks and marks[0][1] <= sample[0] <= marks[-1][1]]
    return training or samples  # a short one may pass between two samples


def wide(megabytes: int, optimizer: str, steps: int, every: int) -> list[object]:
    """programs/train.py with one large variable, and its arguments."""
    model = ["--model", "wide", "--megabytes", megabytes, "--optimizer", optimizer]
    return [PROGRAMS / "train.py", *model, "--steps", steps, "--every", every]


@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("adagrad", 1)])
def test_copies_beside_variables_and_slots(cluster, figure, real, optimizer, slots):
    if not real:
        pytest.skip("a short run is that of the slow server: --real")
    megabytes, steps = 80, 100
    run = cluster(*TWO_WORKERS, *wide(megabytes, optimizer, steps, every=5))
    _, large, idle = zip(*sampled_megabytes(run, ("ps:0", "ps:1")), strict=True)
    held, base = megabytes * (1 + slots), statistics.median(idle)
    median, peak = statistics.median(large), max(large)
    beside = [(used - base - held) / megabytes for used in (median, peak)]
    note = (
        f"median {median:.0f} MB, peak {peak:.0f} MB: variables and slots {held} MB, an idle server "
        f"{base:.0f} MB"
    )
    figure(
        f"server memory, {optimizer}, median", beside[:1], "copies", "<= 2", result=[megabytes, slots, steps]
    )
    figure(
        f"server memory, {optimizer}, peak",
        beside[1:],
        "copies",
        "<= 2",
        result=[megabytes, slots, steps],
        note=note,
    )
    assert peak > base + held


CASES = [
    (updates, transport, optimizer, slots, workers)
    for updates in ("async", "sync")
    for transport in ("local", "grpc")
    for optimizer, slots, workers in (("sgd", 0, 2), ("adagrad", 1, 4), ("adam", 2, 2))
]
FEW = [("async", "grpc", "sgd", 0, 2)]


def test_a_server_ten_times_too_slow_keeps_its_bound(cluster, figure, real):
    """Variables and slots, a gradient of every replica, one version that is published; and credits."""
    megabytes, steps = (80, 25) if real else (32, 3)
    for updates, transport, optimizer, slots, workers in CASES if real else FEW:
        slow = ("--set", "simulate.slow.ps:0=10", "--updates", updates)
        way = ("--set", f"training.transport={transport}")
        program = wide(megabytes, optimizer, steps, every=1)
        run = cluster(*TWO_WORKERS, "--workers", workers, *slow, *way, *program)
        _, large, idle = zip(*sampled_megabytes(run, ("ps:0", "ps:1")), strict=True)
        peak, median = (used - statistics.median(idle) for used in (max(large), statistics.median(large)))
        copies = 1 + slots + workers + 1
        limit = megabytes * copies + CREDIT_MB * workers
        name = f"slow server, {updates}, {transport}, {optimizer}, {workers} workers"
        note = (
            f"{peak / megabytes:.2f} copies of {copies} and {CREDIT_MB} MB a worker; median "
            f"{median / megabytes:.2f}"
        )
        figure(name, [peak / limit], "x", "<= 1", result=[megabytes, slots, workers, steps], note=note)
        assert peak <= limit, name
