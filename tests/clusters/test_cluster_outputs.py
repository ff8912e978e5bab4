"""A model with several outputs on a real cluster: the same losses as in one process, and every output's in
the evaluation.
"""

import re

PROGRAM = """
import numpy as np
import dtrain as dt

X = np.sin(np.arange(96)).reshape(32, 3).astype(np.float32)
PRICES, KINDS = X[:, :1], np.arange(32) % 3

with dt.get_strategy().scope():
    x = dt.layers.Input((3,))
    hidden = dt.layers.Dense(4, "tanh")(x)
    model = dt.Model(x, [dt.layers.Dense(1, name="price")(hidden), dt.layers.Dense(3, "softmax", name="kind")(hidden)])
    model.compile("sgd", {"price": "mse", "kind": "sparse_categorical_crossentropy"}, {"kind": "accuracy"}, {"kind": 0.5})
weights = {"price": np.linspace(0, 1, 32), "kind": np.ones(32)}
history = model.fit(X, {"price": PRICES, "kind": KINDS}, batch_size=8, shuffle=False, epochs=3, sample_weight=weights,
                    validation_data=(X, [PRICES, KINDS]), verbose=0)
print("names", *history.history, flush=True)
numbers = [number for of_epochs in history.history.values() for number in of_epochs]
print("results", *model.evaluate(X, [PRICES, KINDS], verbose=0), *numbers, flush=True)
"""


def results(launch, task="chief:0"):
    return [float(number) for number in re.search(r"results (.*)", launch.log(task)).group(1).split()]


def test_several_outputs(launcher):
    """Two replicas halve every batch of 8: a step, and an epoch's numbers, are those of one process."""
    (launcher.folder / "outputs.py").write_text(PROGRAM)
    cluster = launcher.start("--updates", "sync", "--workers", "1", "outputs.py")
    assert cluster.end() == 0, cluster.err
    assert "names loss price_loss kind_loss kind_accuracy" in cluster.log("chief:0")
    alone = launcher.start("--strategy", "single", "outputs.py")
    assert alone.end() == 0, alone.err
    for found, expected in zip(results(cluster), results(alone), strict=True):
        assert abs(found - expected) < 1e-5 * max(1, abs(expected))
    assert re.search(
        r"evaluation at step 12 - loss: .* - price_loss: .* - kind_accuracy: ", cluster.log("evaluator:0")
    )
    cluster.wait_gone()
