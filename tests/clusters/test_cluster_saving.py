"""What a cluster saves: the leader's files alone, with the optimizer's state, and a run that can be used like
a file.
"""

import numpy as np
import onnxruntime
import pytest
from clusters.watching import DETERMINISTIC

import dtrain as dt
from dtrain.saving.model_files import read_model
from dtrain.strategies.single import SingleStrategy

PROGRAM = """
import os, sys
import numpy as np
import dtrain as dt

class Saver(dt.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(f"epoch-{epoch}")

x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2)
y = x @ np.float32([[1], [-2]])
strategy = dt.get_strategy()
with strategy.scope():
    if len(sys.argv) > 1:
        model = dt.load_model(sys.argv[1])
    else:
        model = dt.Sequential([dt.layers.Dense(4, activation="tanh", input_shape=(2,)), dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
model.fit(x, y, batch_size=4, epochs=2, steps_per_epoch=5, shuffle=False, callbacks=[] if len(sys.argv) > 1 else [Saver()])
model.save("trained" if strategy.is_leader else "by-a-worker")
model.export("trained.onnx" if strategy.is_leader else "by-a-worker.onnx")
if strategy.is_leader:
    print("loss", float(model.evaluate(x, y)[0]))
"""


@pytest.fixture
def train(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)

    def run(*arguments):
        launch = launcher.start(*DETERMINISTIC, "program.py", *arguments)
        assert launch.end() == 0, launch.err
        return launch

    return run


def test_what_the_leader_saves_is_the_whole_training(launcher, train):
    launch = train()
    folder = launcher.folder
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "epoch-0",
        "epoch-1",
        "program.py",
        "trained",
        "trained.onnx",
    ]
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2)
    y = x @ np.float32([[1], [-2]])
    with SingleStrategy().scope():
        saved, of_run = dt.load_model(folder / "trained"), dt.load_model(launch.run_dir)
    assert f"loss {float(saved.evaluate(x, y)[0])}" in launch.out
    for one, other in zip(saved.get_weights(), of_run.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    session = onnxruntime.InferenceSession(folder / "trained.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"input": x})[0], saved.predict(x), atol=1e-5)

    # Adam's moments and steps go along, in the middle of a training and from one cluster to the next.
    states = {name: read_model(folder / name).state for name in ("epoch-0", "epoch-1", "trained")}
    assert [state.step for state in states.values()] == [5, 10, 10]
    for slot, by_variable in states["trained"].slots.items():
        for name, array in by_variable.items():
            np.testing.assert_array_equal(states["epoch-1"].slots[slot][name], array)
            assert not np.array_equal(states["epoch-0"].slots[slot][name], array)
    train("trained")
    assert read_model(folder / "trained").state.step == 20
