"""Callbacks that write: a path that another run writes is refused to them, and steps are counted from where a
training begins.
"""

import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

import dtrain as dt
from dtrain import checkpoints
from dtrain.errors import InputError, RunInUseError
from dtrain.strategies.single import SingleStrategy
from dtrain.training.evaluation import evaluate

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)
WRITTEN = ("table.csv", "backup", "model.safetensors")
HOLDER = (
    "import sys; from dtrain.runs.claims import claim; "
    "[claim(path, 'other-run') for path in sys.argv[1:]]; print('claimed', flush=True); sys.stdin.read()"
)


def fit(callback, epochs=1, run=None, **more):
    strategy = SingleStrategy()
    strategy.context = replace(strategy.context, run_id=run)
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
        return model.fit(
            X, 3 * X, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback], **more
        )


def test_callbacks_that_write_refuse_a_path_that_another_run_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callbacks = (
        dt.callbacks.CSVLogger("table.csv"),
        dt.callbacks.BackupAndRestore("backup"),
        dt.callbacks.ModelCheckpoint("model.safetensors"),
    )
    words = [sys.executable, "-c", HOLDER, *WRITTEN]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        for callback, path in zip(callbacks, WRITTEN, strict=True):
            with pytest.raises(RunInUseError, match=rf"{path} is written by run other-run"):
                fit(callback, run="this-run")
        other.communicate("")
    assert not any((tmp_path / path).exists() for path in WRITTEN), "nothing was begun"
    for callback in callbacks:
        fit(callback, run="this-run")
    assert (tmp_path / "table.csv").exists()
    assert (tmp_path / "model.safetensors").exists()


def test_a_backup_counts_its_steps_from_where_a_training_begins(tmp_path):
    def backup(freq):
        return dt.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=freq, delete_checkpoint=False)

    fit(backup(4), epochs=1)
    seen = set()

    class Look(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.update(found.step for found in checkpoints.list_checkpoints(tmp_path / "backup"))

    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
        model.fit(
            *(X, 3 * X), batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[backup(3), Look()]
        )
    assert sorted(seen) == [4, 7, 10], "steps 5 to 12 were made, and every third of them was saved"


def test_an_evaluation_of_no_example_is_an_error_and_no_number():
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
        with pytest.raises(
            InputError, match="evaluate: expected at least one example, found an empty dataset"
        ):
            evaluate([], model._compiled(), lambda batch: None, lambda step: {})
