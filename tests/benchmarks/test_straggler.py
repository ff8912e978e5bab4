"""Synchronous training of 4 replicas of which 3 count: what one that is five times slower costs."""

import re


def training_s(run) -> float:
    """As the chief accounts for its epochs."""
    return sum(float(epoch) for epoch in re.findall(r"^epoch .* - ([\d.]+) s - ", run.log("chief:0"), re.M))


def test_one_slow_replica(cluster, figure, real, runs):
    program = ["cluster_specs/laptop_sync_backup.yaml", "examples/digits.py", *([] if real else ["--steps", 30])]
    pairs = [(cluster(*program).end(), cluster("--set", "simulate.slow.worker:2=5", *program).end()) for _ in range(runs)]
    late = [sum(task["stale_gradients"] or 0 for task in slow.status["tasks"]) for _, slow in pairs]
    steps = {run.status["global_step"] for pair in pairs for run in pair}
    if real:
        ratios = [training_s(slow) / training_s(fast) for fast, slow in pairs]
        figure("straggler", ratios, "x", "<= 1.3", result=[*steps], note=f"late gradients: {late} of {steps} steps")
    assert steps == {2000 if real else 30}
    assert all(count > 0 for count in late)
