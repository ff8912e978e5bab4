"""The leader of replicas that reduce among themselves dies at every moment of a `fit` in turn: the next task
leads, and everything comes out as if there had been no death.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from row_by_row import NIGHT
from strategies.succeeding import Death, Fleet

import dtrain as dt
from dtrain.callbacks import Callback
from dtrain.errors import InputError

X = np.random.default_rng(5).normal(size=(12, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32)) + 0.3
EPOCHS = 3


class Noter(Callback):
    """Notes what it is called with, and says so in its state; the leader may die in the midst of it."""

    def __init__(self, fleet, calls, name):
        self.fleet = fleet
        self.calls = calls
        self.name = name
        self.begun = []
        self.ended = []

    def get_state(self):
        return {"begun": self.begun, "ended": self.ended}

    def set_state(self, state):
        self.begun = state["begun"]
        self.ended = state["ended"]

    def on_epoch_begin(self, epoch, logs=None):
        self.fleet.moment(self.model.strategy, f"{self.name} begins {epoch}")
        self.begun.append(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.fleet.moment(self.model.strategy, f"{self.name} ends {epoch}")
        self.ended.append([epoch, logs["loss"], logs["val_loss"]])
        self.calls.append((self.name, epoch))
        self.fleet.moment(self.model.strategy, f"{self.name} has ended {epoch}")

    def on_test_batch_end(self, batch, logs=None):
        self.fleet.moment(self.model.strategy, f"{self.name} validates")

    def on_train_batch_begin(self, batch, logs=None):
        self.fleet.moment(self.model.strategy, f"{self.name} begins batch {batch}")


@dataclass
class Story:
    """Everything that came of one `fit`."""

    history: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    noters: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    moments: list = field(default_factory=list)
    files: dict = field(default_factory=dict)

    def outcome(self):
        return self.history[-1], [each.tolist() for each in self.weights[-1]], self.noters[-1], self.files


def steady(fleet, calls, folder):
    """Callbacks with states and files, that change the rate by what it was before."""
    return [
        Noter(fleet, calls, "first"),
        dt.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
        dt.callbacks.CSVLogger(folder / "table.csv"),
        dt.callbacks.ModelCheckpoint(
            folder / "best.safetensors", save_best_only=True, save_weights_only=True, monitor="loss"
        ),
        Noter(fleet, calls, "last"),
    ]


def stopping(fleet, calls, folder):
    """Callbacks that end training early and go back to earlier weights."""
    return [
        dt.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=1.0),
        Noter(fleet, calls, "first"),
        dt.callbacks.EarlyStopping(monitor="val_loss", patience=1, mode="max", restore_best_weights=True),
        Noter(fleet, calls, "last"),
    ]


def told(folder, make, dies_at=(), tasks=3, epochs=EPOCHS):
    """Run a `fit` whose leader dies at these moments."""
    folder.mkdir(exist_ok=True)
    fleet = Fleet(tasks, dies_at)
    story = Story(moments=fleet.moments)
    fits = []
    for strategy in fleet.strategies():
        with strategy.scope():
            model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
            model.compile(dt.optimizers.SGD(0.1, momentum=0.5), "mse")
        fits.append((model, make(fleet, story.calls, folder)))
    failures = []

    def fit(model, callbacks):
        try:
            history = model.fit(
                *(X, Y), batch_size=6, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks,
                validation_data=(X, Y),
            )  # fmt: skip
        except Death:
            return
        except BaseException as error:
            failures.append(error)
            raise
        story.history.append(history.history)
        story.weights.append(model.get_weights())
        if model.strategy.is_leader:
            story.noters.append([vars(each) for each in callbacks if isinstance(each, Noter)])

    threads = [threading.Thread(target=fit, args=each, daemon=True) for each in fits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    story.noters = [[(each["begun"], each["ended"]) for each in noters] for noters in story.noters]
    story.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return story


@pytest.mark.parametrize(("make", "epochs"), [(steady, 2), (stopping, EPOCHS)])
def test_a_death_at_any_moment_changes_nothing(make, epochs, tmp_path):
    calm = told(tmp_path / "calm", make, epochs=epochs)
    assert len(calm.history) == 3
    assert calm.history[0] == calm.history[1] == calm.history[2]
    assert len(calm.moments) > 50
    last_of_its_kind = {moment: number for number, moment in enumerate(calm.moments)}
    for number, moment in enumerate(calm.moments):
        if last_of_its_kind[moment] != number and not NIGHT:
            continue
        story = told(tmp_path / f"{number}", make, (number,), epochs=epochs)
        if moment in ("after conclude",):  # the others had gone
            continue
        assert len(story.history) == 2, moment
        assert story.history[0] == story.history[1], moment
        assert story.outcome() == calm.outcome(), moment
        # Only the hook in whose midst, or right behind which, it died is called again.
        again = list(story.calls)
        for call in calm.calls:
            again.remove(call)
        assert len(again) <= (1 if "has ended" in moment or moment.endswith("keep") else 0), moment


def test_heirs_die_as_well(tmp_path):
    calm = told(tmp_path / "calm", steady, tasks=4)
    # Who leads behind the last callback has nothing to tell.
    until = calm.moments.index(f"last ends {EPOCHS - 1}") - 3
    chance = np.random.default_rng(2)
    for number in range(12 if NIGHT else 4):
        moments = tuple(chance.choice(until, size=3, replace=False).tolist())
        story = told(tmp_path / f"{number}", steady, moments, tasks=4)
        assert len(story.history) == 1
        assert story.outcome() == calm.outcome(), moments


class Forgetful(Callback):
    """Has no `get_state`, and needs its hooks in their order."""

    def on_train_begin(self, logs=None):
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate *= 0.5
        self.under_way = epoch

    def on_epoch_end(self, epoch, logs=None):
        assert self.under_way == epoch
        self.epochs.append(epoch)


def test_a_callback_without_a_state_begins_anew_and_is_named(tmp_path, capsys):
    """What it changes as it begins anew is in force already."""

    def make(fleet, calls, folder):
        return [Noter(fleet, calls, "first"), Forgetful()]

    calm = told(tmp_path / "calm", make)
    assert "begin anew" not in capsys.readouterr().err
    story = told(tmp_path / "death", make, (calm.moments.index("first ends 1"),))
    said = capsys.readouterr().err
    assert said.count("callbacks without a state begin anew: Forgetful (see Callback.get_state)") == 1
    assert story.outcome() == calm.outcome()


class Odd(Callback):
    """Its state is no plain data."""

    def get_state(self):
        return {"model": self}


def test_a_state_that_is_no_plain_data_is_refused(tmp_path):
    fleet = Fleet(1)
    (strategy,) = fleet.strategies()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
        model.compile("sgd", "mse")
        with pytest.raises(
            InputError, match=r"state of the callback Odd: expected plain data .* found a Odd"
        ):
            model.fit(X, Y, verbose=0, callbacks=[Odd()])
