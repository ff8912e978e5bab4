"""An embedding table of 10 million rows x 16 on 4 servers, Adagrad: what all tasks hold, and what a step on
1,000 rows takes.

Memory is the PSS of every task, chief and workers included, sampled from the start through all checkpoints.
Steps are timed in runs without checkpoints on the way, which alternate with runs on a table of 10,000 rows.
"""

import contextlib
import statistics
import time

import numpy as np
import psutil
from benchmarks.cluster_run import PROGRAMS

TASKS = ("chief:0", "worker:0", "ps:0", "ps:1", "ps:2", "ps:3")
CLUSTER = ("--no-evaluator", "--workers", 1, "--ps", 4, "--set", "training.partitioner={fixed_shards: 4}")
BYTES_A_ROW = 2 * 16 * 4
"""Of the table and its one slot."""
SMALL = 10_000
SAMPLE_S = 0.05


def peak_megabytes(run) -> float:
    """PSS of all tasks together while a run lasts."""
    peak = 0.0
    while run.under_way:
        pids = [run.task(name).get("pid") for name in TASKS]
        with contextlib.suppress(psutil.Error):
            peak = max(peak, sum(psutil.Process(pid).memory_full_info().pss for pid in pids if pid) / 1e6)
        time.sleep(SAMPLE_S)
    return peak


def step_ms(run) -> float:
    """The median step of the worker while training goes on."""
    times = np.array([when for _, when in run.marks("worker:0")])
    return 1e3 * float(np.median(np.diff(times)))


def test_memory_and_steps_of_a_large_table(cluster, beside, figure, real, runs):
    large, steps = (10_000_000, 600) if real else (40_000, 10)
    held, peaks, steps_ms = large * BYTES_A_ROW / 1e6, [], {large: [], SMALL: []}

    def launch(rows, every_steps):
        often = ("--set", "checkpoint.every_s=null", "--set", f"checkpoint.every_steps={every_steps}")
        return cluster(*often, *CLUSTER, PROGRAMS / "table.py", "--rows", rows, "--steps", steps)

    for _ in range(runs):
        run = launch(large, steps // 3)
        peaks.append(peak_megabytes(run))
        assert f"rows {large}" in run.end().log("chief:0")
        for rows, found in steps_ms.items() if real else ():
            found.append(step_ms(launch(rows, 10 * steps).end()))
    note = f"all tasks {statistics.median(peaks):.0f} MB, table and slots {held:.0f} MB"
    figure(
        "table, peak memory",
        [peak / held for peak in peaks],
        "x",
        "<= 2.2" if real else None,
        result=[large, steps],
        note=note,
    )
    if real:
        others = {"10,000 rows": steps_ms[SMALL]}
        name, result = "table, a step on 1,000 rows", [large, steps]
        beside(name, steps_ms[large], "ms", others, {"10,000 rows": "<= 1.1"}, result=result)
