"""Layers that are frozen and thawed between two calls of `fit`, on a real cluster as in one process."""

import re

PROGRAM = """
import numpy as np
import dtrain as dt

x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(30, "relu", input_shape=(4,)), dt.layers.Dense(1)])
    model.compile(dt.optimizers.Adam(0.1), "mse")
for trainable in (False, True, False):
    model.layers[0].trainable = trainable
    before = model.get_weights()
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    print("stayed", [bool(np.array_equal(*pair)) for pair in zip(before, model.get_weights())], flush=True)
"""


def test_freezing(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)
    launch = launcher.start("--updates", "sync", "--no-evaluator", "program.py")
    assert launch.end() == 0, launch.err
    frozen, trained = "[True, True, False, False]", "[False, False, False, False]"
    assert re.findall(r"stayed (.*)", launch.log("chief:0")) == [frozen, trained, frozen]
    launch.wait_gone()
