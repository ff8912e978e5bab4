"""A server of one large variable, asynchronous, 2 workers: what it holds beside the variable and its slots.

Memory is counted as PSS, sampled while training is under way; beside it in the same run a server that holds next to nothing
shows what a server costs anyhow.
"""

import contextlib
import statistics
import time

import psutil
import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS

SAMPLE_S = 0.01


def sampled_megabytes(run, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    """(when, PSS of each task) while a run trains, by the clock of worker:0."""
    samples = []
    while run.under_way and not all(run.task(name).get("pid") for name in names):
        time.sleep(SAMPLE_S)
    processes = [psutil.Process(run.task(name)["pid"]) for name in names]
    with contextlib.suppress(psutil.Error):
        while run.under_way:
            samples.append((time.monotonic(), *(process.memory_full_info().pss / 1e6 for process in processes)))
            time.sleep(SAMPLE_S)
    marks = run.end().marks("worker:0")
    return [sample for sample in samples if marks[0][1] <= sample[0] <= marks[-1][1]]


@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("adagrad", 1)])
def test_copies_beside_variables_and_slots(cluster, figure, real, optimizer, slots):
    megabytes, steps = (80, 100) if real else (8, 100)
    words = ["--model", "wide", "--megabytes", megabytes, "--optimizer", optimizer, "--steps", steps, "--every", 5]
    run = cluster(*TWO_WORKERS, PROGRAMS / "train.py", *words)
    _, large, idle = zip(*sampled_megabytes(run, ("ps:0", "ps:1")), strict=True)
    held, base = megabytes * (1 + slots), statistics.median(idle)
    median, peak = statistics.median(large), max(large)
    beside = [(used - base - held) / megabytes for used in (median, peak)]
    note = f"median {median:.0f} MB, peak {peak:.0f} MB: variables and slots {held} MB, an idle server {base:.0f} MB"
    figure(f"server memory, {optimizer}, median", beside[:1], "copies", "<= 2", result=[megabytes, slots, steps])
    figure(f"server memory, {optimizer}, peak", beside[1:], "copies", "<= 2", result=[megabytes, slots, steps], note=note)
    assert peak > base + held
