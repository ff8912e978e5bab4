"""Callbacks on a real cluster: a schedule of rates holds, and the final checkpoint has the best weights."""

import csv
import re

import pytest

PROGRAM = """
import numpy as np
import dtrain as dt

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(32, 1)
DATA = (X, 3 * X - 1)
RATES = [1e-3] * 3 + [1e-4] * 4 + [1e-5] * 5

class PrintRate(dt.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("rate", epoch, self.model.optimizer.learning_rate, flush=True)

with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(dt.optimizers.Adam(), "mse")
watch = dt.callbacks.EarlyStopping("lr", patience=4, restore_best_weights=True)
schedule = dt.callbacks.LearningRateScheduler(lambda epoch: RATES[epoch])
model.fit(DATA, epochs=12, batch_size=4, validation_data=DATA, callbacks=[
    schedule, PrintRate(), dt.callbacks.CSVLogger("table.csv"),
    dt.callbacks.ModelCheckpoint("ckpt_{epoch}", save_weights_only=True),
    dt.callbacks.TensorBoard("logs"), watch])
print("weights", *(float(w.ravel()[0]) for w in model.get_weights()))
"""


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_the_schedule_holds_and_the_best_weights_are_saved(launcher, updates):
    (launcher.folder / "program.py").write_text(PROGRAM)
    launch = launcher.start("--workers", "1", "--ps", "1", "--updates", updates, "program.py")
    assert launch.end() == 0, launch.err
    rates = re.findall(r"rate (\d+) (\S+)", launch.log("chief:0"))
    expected = [1e-3] * 3 + [1e-4] * 4 + [1e-5] * 5
    assert [(int(epoch), float(rate)) for epoch, rate in rates] == list(enumerate(expected))
    with (launcher.folder / "table.csv").open(newline="") as file:
        assert [float(row["lr"]) for row in csv.DictReader(file)] == expected
    assert all((launcher.folder / f"ckpt_{epoch}").is_file() for epoch in range(1, 13))
    tasks = ("chief:0", "evaluator:0")
    weights = {re.search(r"weights (.*)", launch.log(task)).group(1) for task in tasks}
    assert len(weights) == 1, "what the last epoch's callbacks set is in the final checkpoint"
    launch.wait_gone()
