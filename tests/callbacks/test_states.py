"""The states of callbacks, which travel as plain data to the task that leads next."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.formats import plain_data
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)
CALLBACKS = {
    "stop": lambda: dt.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=9),
    "reduce": lambda: dt.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0, cooldown=3),
    "checkpoint": lambda: dt.callbacks.ModelCheckpoint(
        "best_{epoch}", "loss", save_best_only=True, save_weights_only=True
    ),
    "by_steps": lambda: dt.callbacks.ModelCheckpoint("latest", save_weights_only=True, save_freq=3),
    "backup": lambda: dt.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
    "board": lambda: dt.callbacks.TensorBoard("logs", update_freq=3),
    "table": lambda: dt.callbacks.CSVLogger("table.csv", append=True),
    "history": dt.callbacks.History,
}


def state_of(callback):
    return plain_data.encode(callback.get_state())


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        yield


def fit(callback, epochs=2):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    model.fit(X, 3 * X, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
    return model


class Follows(dt.callbacks.Callback):
    """Sets the state of another callback as training begins, and reads what became of it."""

    def __init__(self, callback, state):
        self.callback = callback
        self.state = state

    def on_train_begin(self, logs=None):
        self.callback.set_state(plain_data.decode(self.state))
        assert state_of(self.callback) == self.state


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_state_is_plain_data_and_comes_back(name):
    """It has changed by the epochs, so that there was something to come back."""
    first, second = CALLBACKS[name](), CALLBACKS[name]()
    before = state_of(first)
    fit(first)
    assert state_of(first) != before
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    follows = Follows(second, state_of(first))
    model.fit(X, X, batch_size=4, verbose=0, callbacks=[second, follows])


@pytest.mark.parametrize(
    "make", [dt.callbacks.TerminateOnNaN, lambda: dt.callbacks.LearningRateScheduler(abs)]
)
def test_what_has_nothing_to_remember_says_so(make):
    assert make().get_state() == {}


def test_a_callback_of_one_s_own_says_nothing_unless_it_defines_a_state():
    assert dt.callbacks.Callback().get_state() is None
    assert dt.callbacks.LambdaCallback(on_epoch_end=print).get_state() is None


@pytest.mark.parametrize("append", [False, True])
def test_a_table_goes_on_behind_what_was_there_before_training(append, tmp_path):
    """Also on another machine, whose disk has no such file."""
    path = tmp_path / "table.csv"
    fit(dt.callbacks.CSVLogger(path))
    first = dt.callbacks.CSVLogger(path, append=append)
    fit(first)
    expected = path.read_text()
    state = state_of(first)
    path.write_text(expected + "1,torn")

    def again(place):
        second = dt.callbacks.CSVLogger(place, append=append)
        second.model = SingleModel()
        second.on_train_begin()
        second.set_state(plain_data.decode(state))
        second.on_train_end()
        return place.read_text()

    assert again(path) == expected
    alone = again(tmp_path / "elsewhere.csv")
    assert alone
    assert expected.endswith(alone)


class SingleModel:
    strategy = SingleStrategy()
