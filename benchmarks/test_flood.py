"""A flood of strangers on a server's port: 1,000 connections open and 200 new ones a second, each with a call.

CPU and memory of the server, and the time of a step beside the same flood sent to an unrelated port.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
from benchmarks.cluster_run import PROGRAMS

GRPC = ("--workers", 2, "--ps", 1, "--no-evaluator", "--set", "training.transport=grpc")


@contextmanager
def flooding(*words):
    """A process of flood.py, and the first line that it says; it ends with its input."""
    command = [sys.executable, PROGRAMS / "flood.py", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def step_of(run):
    try:
        return json.loads((run.run_dir / "tasks" / "chief-0" / "status.json").read_text())["step"] or 0
    except (OSError, ValueError):
        return 0


def measured(run, server, within_s):
    """Return milliseconds of a step, and percent of a core that the server takes, over some seconds."""
    begun_s, step, used_s = time.monotonic(), step_of(run), sum(server.cpu_times()[:2])
    while (passed_s := time.monotonic() - begun_s) < within_s or step_of(run) == step:
        time.sleep(0.05)
    spent_s = sum(server.cpu_times()[:2]) - used_s
    return 1000 * passed_s / (step_of(run) - step), 100 * spent_s / passed_s


def test_a_flood_of_strangers(cluster, figure, beside, real, runs):
    number, rate, within_s = (1000, 200, 6.0) if real else (4, 20, 0.1)
    run = cluster(*GRPC, PROGRAMS / "train.py", "--model", "mlp", "--steps", 10**7)
    while step_of(run) < 2:
        assert run.under_way
        time.sleep(0.05)
    server = psutil.Process(run.task("ps:0")["pid"])
    with flooding("sink") as elsewhere:
        steps, cpu = {"flooded": [], "elsewhere": []}, {"flooded": [], "elsewhere": []}
        with flooding(elsewhere, number, rate) as said:
            measured(run, server, within_s)
        before = server.memory_info().rss
        for pair in range(runs):
            ways = [("flooded", run.task("ps:0")["address"]), ("elsewhere", elsewhere)]
            for way, address in ways if pair % 2 else reversed(ways):
                with flooding(address, number, rate) as said:
                    assert said == "ready"
                    step_ms, percent = measured(run, server, within_s)
                steps[way].append(step_ms)
                cpu[way].append(percent)
        grown = server.memory_info().rss - before
    beside(
        "a step under a flood",
        steps["flooded"],
        "ms",
        {"elsewhere": steps["elsewhere"]},
        {"elsewhere": "<= 1.2"},
    )
    pairs = zip(cpu["flooded"], cpu["elsewhere"], strict=True)
    more = [ours - theirs for ours, theirs in pairs]
    figure("CPU of a server for a flood", more, "% of a core", promised="<= 20")
    figure("memory of a server for a flood", [grown / 1e6], "MB", promised="<= 20")
