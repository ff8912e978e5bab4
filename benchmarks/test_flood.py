"""Two floods of strangers on a server's port: 1,000 connections open and 200 new ones a second, each with a call;
and 22,000 connections that say nothing, or HTTP/2's preface and nothing more, of which 4,000 a second are new, from
two processes.

CPU and memory of the server, and the time of a step beside the same flood sent to an unrelated port.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from benchmarks.cluster_run import PROGRAMS

GRPC = ("--workers", 2, "--ps", 1, "--no-evaluator", "--set", "training.transport=grpc")


KINDS = {"calls": [(1000, 200)], "silent": [(11_000, 2000, "silent")] * 2}


@contextmanager
def flooding(*words):
    """A process of flood.py, and the first line that it says; it ends with its input."""
    command = [sys.executable, PROGRAMS / "flood.py", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


@contextmanager
def all_flooding(address, floods):
    """Every process of a flood, at once."""
    with ExitStack() as stack:
        assert {stack.enter_context(flooding(address, *words)) for words in floods} == {"ready"}
        yield


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_of_strangers(cluster, figure, beside, real, runs, kind):
    if kind == "silent" and not real:
        pytest.skip("the flood of calls runs the same program, and one of a few connections shows nothing")
    floods, within_s = (KINDS[kind], 6.0) if real else ([(4, 20)], 0.1)
    run = cluster(*GRPC, PROGRAMS / "train.py", "--model", "mlp", "--steps", 10**7)
    while step_of(run) < 2:
        assert run.under_way
        time.sleep(0.05)
    server = psutil.Process(run.task("ps:0")["pid"])
    with flooding("sink") as elsewhere:
        steps, cpu = {"flooded": [], "elsewhere": []}, {"flooded": [], "elsewhere": []}
        with all_flooding(elsewhere, floods):
            measured(run, server, within_s)
        before, grown = server.memory_info().rss, []
        for pair in range(runs):
            ways = [("flooded", run.task("ps:0")["address"]), ("elsewhere", elsewhere)]
            for way, address in ways if pair % 2 else reversed(ways):
                with all_flooding(address, floods):
                    step_ms, percent = measured(run, server, within_s)
                    if way == "flooded":
                        grown.append((server.memory_info().rss - before) / 1e6)
                steps[way].append(step_ms)
                cpu[way].append(percent)
    beside(
        f"a step under a flood of {kind}",
        steps["flooded"],
        "ms",
        {"elsewhere": steps["elsewhere"]},
        {"elsewhere": "<= 1.2"},
    )
    pairs = zip(cpu["flooded"], cpu["elsewhere"], strict=True)
    more = [ours - theirs for ours, theirs in pairs]
    figure(f"CPU of a server for a flood of {kind}", more, "% of a core", promised="<= 20")
    figure(f"memory of a server for a flood of {kind}", grown, "MB", promised="<= 20")
