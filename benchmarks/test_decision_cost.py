"""Synchronous training, N = T = 2, the smallest step: what it costs that two servers decide as one."""

import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS


def only_for_real(real):
    if not real:
        pytest.skip("its program is that of test_line_speed.py: --real")


def test_two_servers_against_one(cluster, figure, real, runs):
    only_for_real(real)
    steps = 4000
    speeds = {1: [], 2: []}
    for _ in range(runs):
        for servers, found in speeds.items():
            words = [
                *TWO_WORKERS,
                "--updates",
                "sync",
                "--ps",
                servers,
                PROGRAMS / "train.py",
                "--model",
                "line",
                "--steps",
                steps,
            ]
            run = cluster(*words).end()
            assert run.status["global_step"] == steps
            found.append(run.steps_per_s("worker:0"))
    one = figure("sync line, 1 server", speeds[1], "steps/s", result=steps)
    figure(
        "sync line, 2 servers",
        speeds[2],
        "steps/s",
        versus={"1 server, no decision to share": one.median},
        result=steps,
    )


ONE_WORKER = ("--no-evaluator", "--workers", 1, "--ps", 2, "--set", "training.chief_trains=false")


def test_deciding_against_not_deciding(cluster, figure, real, runs):
    """One worker, two servers: sync, where ps:0 decides and tells ps:1, and async, where each server decides for itself."""
    only_for_real(real)
    steps = 4000
    costs_ms = []
    for _ in range(runs):
        step_ms = {}
        for updates in ("async", "sync"):
            words = ("--updates", updates, PROGRAMS / "train.py", "--model", "line", "--steps", steps)
            run = cluster(*ONE_WORKER, *words).end()
            assert run.status["global_step"] == steps
            step_ms[updates] = 1e3 / run.steps_per_s("worker:0")
        costs_ms.append(step_ms["sync"] - step_ms["async"])
    figure("one decision", costs_ms, "ms", "<= 0.3", result=steps, note="a step of sync, less one of async")
