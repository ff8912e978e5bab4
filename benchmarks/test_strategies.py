"""The same model with two replicas under every strategy: examples per second, and beside one process alone.

`docs/make_strategy_pictures.py` draws them for the guide's page "Which strategy?".
"""

import pytest
from benchmarks.cluster_run import PROGRAMS

STRATEGIES = {
    "one process": ("--strategy", "single"),
    "mirrored": ("--strategy", "mirrored", "--no-evaluator", "--set", "training.replicas=2"),
    "central storage": ("--strategy", "central_storage", "--no-evaluator", "--set", "training.replicas=2"),
    "multi-worker mirrored": ("--strategy", "multi_worker_mirrored", "--workers", 1, "--no-evaluator"),
    "parameter servers, sync": ("--updates", "sync", "--workers", 1, "--ps", 1, "--no-evaluator"),
    "parameter servers, async": ("--workers", 1, "--ps", 1, "--no-evaluator"),
}


@pytest.mark.parametrize("model", ["mlp", "cnn", "wide"])
def test_examples_per_second(cluster, figure, real, runs, model):
    if not real and model != "mlp":
        pytest.skip("a short run is that of the MLP: --real")
    steps, epochs = {"mlp": (100, 6), "cnn": (40, 4), "wide": (40, 5)}[model] if real else (2, 2)
    words = ["--model", model, "--steps", steps, "--epochs", epochs]
    strategies = STRATEGIES if real else {"mirrored": STRATEGIES["mirrored"]}
    rates: dict[str, list[float]] = {name: [] for name in strategies}
    for _ in range(runs):
        for name, options in strategies.items():
            run = cluster(*options, PROGRAMS / "strategies.py", *words).end()
            rates[name].append(run.said("chief:0", "examples_per_s"))
    for name, found in rates.items():
        assert figure(f"{model}, {name}", found, "examples/s").median > 0
