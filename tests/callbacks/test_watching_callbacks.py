"""Callbacks that watch a number, fed with histories: what Keras 2.15 does with them."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.callbacks import EarlyStopping, ModelCheckpoint, ReduceLROnPlateau, TerminateOnNaN
from dtrain.errors import SpecError


class Model(SimpleNamespace):
    """Remembers what callbacks do to it."""

    def __init__(self, rate=1.0):
        super().__init__(
            stop_training=False,
            arrays=0,
            restored=None,
            saved=[],
            optimizer=SimpleNamespace(learning_rate=rate),
        )
        self.strategy = SimpleNamespace(directory=None)

    def get_weights(self):
        return [self.arrays]

    def set_weights(self, weights):
        self.restored = weights

    def save(self, path, overwrite):
        self.saved.append(("model", str(path)))

    def save_weights(self, path, overwrite):
        self.saved.append(("weights", str(path)))


def played(callback, values, name="val_loss", rate=1.0):
    """The model, and the epochs that were played."""
    model = Model(rate)
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        model.arrays = epoch
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": 0.0, name: value})
        if model.stop_training:
            break
    return model, epoch + 1


@every_row(
    "arguments, values, epochs",
    [
        ({}, [3, 2, 2.5, 1], 3),
        ({"patience": 2}, [3, 2, 2.5, 2.4, 1], 4),
        ({"patience": 2}, [3, 2, 2.5, 1.9, 2, 2, 1], 6),
        ({"min_delta": 0.5}, [3, 2.8, 1], 2),
        ({"monitor": "val_accuracy"}, [0.5, 0.6, 0.6, 0.9], 3),
        ({"monitor": "val_loss", "mode": "max"}, [3, 4, 2], 3),
        (
            {"baseline": 1.0},
            [3, 2, 1.5],
            3,
        ),  # an improvement that stays above the baseline leaves patience as it is
        ({"start_from_epoch": 3, "patience": 1}, [1, 2, 3, 4, 5, 6], 5),
    ],
)
def test_early_stopping(arguments, values, epochs):
    name = arguments.get("monitor", "val_loss")
    if "baseline" in arguments:
        values = [*values, 3]
        epochs = 4
    assert played(EarlyStopping(**arguments), values, name)[1] == epochs


def test_early_stopping_goes_back_to_the_best_weights():
    model, epochs = played(EarlyStopping(patience=2, restore_best_weights=True), [3, 1, 2, 2, 0])
    assert (epochs, model.restored) == (4, [1])


def test_a_number_that_is_not_there_is_warned_about():
    with pytest.warns(
        RuntimeWarning,
        match="EarlyStopping: there is no number 'val_loss' to watch; there are loss, accuracy",
    ):
        played(EarlyStopping(), [1], "accuracy")


@pytest.mark.parametrize(
    "callback", [EarlyStopping, ReduceLROnPlateau, lambda mode: ModelCheckpoint("x", mode=mode)]
)
def test_modes(callback):
    with pytest.raises(SpecError, match="expected a mode among auto, min, max, found 'up'"):
        callback(mode="up")


@every_row(
    "arguments, values, rate",
    [
        ({"patience": 2}, [1, 1, 1], 0.1),
        ({"patience": 2}, [1, 1], 1.0),
        ({"patience": 1, "factor": 0.5}, [1, 1, 1], 0.25),
        ({"patience": 1, "factor": 0.5, "cooldown": 2}, [1, 1, 1, 1, 1], 0.25),
        ({"patience": 1, "factor": 0.1, "min_lr": 0.05}, [1, 1, 1, 1], 0.05),
        ({"patience": 1, "min_delta": 0.1}, [1, 0.95], 0.1),
        ({"patience": 1, "mode": "max"}, [1, 2, 3], 1.0),
    ],
)
def test_reduce_on_plateau(arguments, values, rate):
    assert played(ReduceLROnPlateau(**arguments), values)[0].optimizer.learning_rate == pytest.approx(rate)


def test_the_factor_lowers():
    with pytest.raises(SpecError, match=r"expected a factor < 1\.0, found 1"):
        ReduceLROnPlateau(factor=1)


@every_row(
    "arguments, saved",
    [
        ({}, [("model", "1"), ("model", "2"), ("model", "3")]),
        ({"save_weights_only": True}, [("weights", "1"), ("weights", "2"), ("weights", "3")]),
        ({"save_best_only": True}, [("model", "1"), ("model", "3")]),
        ({"save_best_only": True, "mode": "max"}, [("model", "1"), ("model", "2")]),
        ({"save_best_only": True, "initial_value_threshold": 1.5}, [("model", "3")]),
    ],
)
def test_model_checkpoint(arguments, saved):
    assert played(ModelCheckpoint("{epoch}", **arguments), [2, 3, 1])[0].saved == saved


def test_names_of_numbers_in_the_path():
    model, _ = played(ModelCheckpoint("c-{epoch:02d}-{val_loss:.2f}"), [0.126])
    assert model.saved == [("model", "c-01-0.13")]
    with pytest.raises(SpecError, match="names 'val_accuracy'; there are epoch, loss, val_loss"):
        played(ModelCheckpoint("{val_accuracy}"), [1])


def test_saving_every_so_many_global_steps():
    callback, model = ModelCheckpoint("{epoch}-{batch}", save_freq=3), Model()
    callback.set_model(model)
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in (0, 2, 3, 4):  # others make steps too
            callback.on_train_batch_end(batch, {})
        callback.on_epoch_end(epoch, {})
    assert [path for _, path in model.saved] == ["1-3", "2-1", "2-4"]


@pytest.mark.parametrize("frequency", [0, -1, "batch", 1.5])
def test_frequencies(frequency):
    with pytest.raises(SpecError, match="expected save_freq 'epoch' or a number of steps"):
        ModelCheckpoint("x", save_freq=frequency)


def test_validation_is_asked_for_by_whoever_looks_at_it():
    assert EarlyStopping().monitors_validation()
    assert not EarlyStopping("loss").monitors_validation()
    assert not ModelCheckpoint("x").monitors_validation()
    assert ModelCheckpoint("x", save_best_only=True).monitors_validation()
    assert ModelCheckpoint("{val_loss}").monitors_validation()


@pytest.mark.parametrize(("loss", "stops"), [(np.nan, True), (np.inf, True), (1.0, False)])
def test_terminate_on_nan(loss, stops):
    callback, model = TerminateOnNaN(), Model()
    callback.set_model(model)
    callback.on_train_batch_end(3, {"loss": loss})
    callback.on_train_batch_end(4, {})
    assert model.stop_training == stops


def test_nothing_is_warned_about_where_all_is_there():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played(EarlyStopping(patience=5), [1, 2])
