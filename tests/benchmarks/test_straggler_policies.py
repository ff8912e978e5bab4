"""What one replica of 4 that is five times slower costs, by the way in which the others deal with it."""

import re

import pytest
from benchmarks.test_straggler import training_s

SLOW = ("--set", "simulate.slow.worker:2=5")
POLICIES = {
    "sync": ("--updates", "sync"),
    "sync, 1 backup": ("--updates", "sync", "--backup-workers", 1),
    "async": ("--updates", "async"),
    "async, scaled": ("--updates", "async", "--set", "training.stale_gradients=scale"),
}


def held_out_accuracy(run) -> float:
    return float(re.search(r"held-out accuracy ([\d.]+)", run.log("chief:0"))[1])


@pytest.mark.parametrize("policy", POLICIES)
def test_one_slow_replica_of_four(cluster, figure, real, runs, policy):
    cluster_of_4 = ("--workers", 3, "--no-evaluator", *POLICIES[policy])
    program = ("examples/digits.py", *(() if real else ("--steps", 40)))
    pairs = [(cluster(*cluster_of_4, *program).end(), cluster(*cluster_of_4, *SLOW, *program).end()) for _ in range(runs)]
    steps = {run.status["global_step"] for pair in pairs for run in pair}
    accuracies = [held_out_accuracy(slow) for _, slow in pairs]
    if real:
        late = [sum(task["stale_gradients"] or 0 for task in slow.status["tasks"]) for _, slow in pairs]
        worst = [round(max(task["staleness_mean"] or 0 for task in slow.status["tasks"]), 1) for _, slow in pairs]
        note = f"late gradients {late}; mean staleness of the slow one {worst}; accuracies {accuracies}"
        ratios = [training_s(slow) / training_s(fast) for fast, slow in pairs]
        figure(f"straggler: {policy}", ratios, "x", result=[*steps], note=note)
        figure(f"straggler: {policy}: accuracy", accuracies, "", result=[*steps])
    assert steps == {2000 if real else 40}
    assert all(0.1 < accuracy <= 1 for accuracy in accuracies)
