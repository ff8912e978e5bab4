"""Synchronous training of 4 replicas of which 3 count: what one that is five times slower costs, or dead."""

import re
from itertools import pairwise
from statistics import mean

import pytest
from benchmarks.cluster_run import PROGRAMS


def training_s(run) -> float:
    """As the chief accounts for its epochs: to a tenth of a second."""
    epochs = re.findall(r"^epoch .* - ([\d.]+) s - ", run.log("chief:0"), re.M)
    assert epochs, run.log("chief:0")
    return sum(map(float, epochs))


def test_one_slow_replica(cluster, figure, real, runs):
    if not real:
        pytest.skip("a short run is that of test_straggler_policies.py: --real")
    program = ["cluster_specs/laptop_sync_backup.yaml", "examples/digits.py"]
    pairs = [
        (cluster(*program).end(), cluster("--set", "simulate.slow.worker:2=5", *program).end())
        for _ in range(runs)
    ]
    late = [sum(task["stale_gradients"] or 0 for task in slow.status["tasks"]) for _, slow in pairs]
    steps = {run.status["global_step"] for pair in pairs for run in pair}
    ratios = [training_s(slow) / training_s(fast) for fast, slow in pairs]
    note = f"late gradients: {late} of {steps} steps"
    figure("straggler", ratios, "x", "<= 1.15", result=[*steps], note=note)
    assert steps == {2000}
    assert all(count > 0 for count in late)


def test_one_dead_replica(cluster, figure, real, runs):
    """Before its death and after it, in the same run."""
    if not real:
        pytest.skip("tests/clusters kill a worker as well: --real")
    steps, kill = 900, 300
    fault = (
        "--set",
        f"simulate.kill=[{{task: worker:2, at_step: {kill}}}]",
        "--set",
        "restart.worker.policy=never",
    )
    words = (
        "cluster_specs/laptop_sync_backup.yaml",
        PROGRAMS / "train.py",
        "--model",
        "mlp",
        "--every",
        1,
        "--steps",
        steps,
    )
    ratios = []
    for _ in range(runs):
        run = cluster("--no-evaluator", *fault, *words).end()
        assert run.status["global_step"] == steps
        killed_s = run.events("fault")[0]["monotonic_s"]
        done = [at_s for _, at_s in run.marks("chief:0")]
        took = [(later > killed_s, later - earlier) for earlier, later in pairwise(done[10:])]
        before, after = ([took_s for is_after, took_s in took if is_after is late] for late in (False, True))
        ratios.append(mean(after) / mean(before) if before and after else float("nan"))
    figure(
        "one of 4 dead", ratios, "x", "<= 1.15", result=steps, note="mean step after its death / before it"
    )
