"""What callbacks change while a fit runs, in one process: rate, weights, the end."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.callbacks import Callback, LambdaCallback
from dtrain.errors import InputError
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)
DATA = (X, 3 * X - 1)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def model(optimizer=None, value=0.0):
    made = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    made.compile(optimizer or dt.optimizers.SGD(0.1), "mse")
    made.set_weights([np.full(spec.shape, value) for spec in made.variables])
    return made


def fit(made, *callbacks, epochs=3, **more):
    return made.fit(
        DATA, epochs=epochs, batch_size=4, shuffle=False, verbose=0, callbacks=list(callbacks), **more
    )


def by_hand(rates, steps_per_epoch=4):
    """The weights after epochs of these rates."""
    weight = bias = np.float32(0)
    for rate in rates:
        for x, y in zip(np.split(X, steps_per_epoch), np.split(DATA[1], steps_per_epoch), strict=True):
            error = x * weight + bias - y
            weight, bias = weight - rate * 2 * np.mean(error * x), bias - rate * 2 * np.mean(error)
    return [np.array([[weight]]), np.array([bias])]


def same(one, other):
    return all(np.allclose(a, b, rtol=1e-5) for a, b in zip(one, other, strict=True))


def test_a_rate_set_at_the_beginning_of_an_epoch_holds_for_its_steps():
    made, rates = model(), [0.1, 0.05, 0.2]
    history = fit(made, dt.callbacks.LearningRateScheduler(rates.__getitem__))
    assert same(made.get_weights(), by_hand(rates))
    assert history.history["lr"] == rates
    assert made.optimizer.learning_rate == 0.2


def test_the_schedule_may_look_at_the_rate_before():
    history = fit(
        model(), dt.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch == 0 else rate / 2)
    )
    assert history.history["lr"] == [0.1, 0.05, 0.025]


@pytest.mark.parametrize("rate", [None, "0.1", [0.1]])
def test_a_schedule_returns_a_number(rate):
    with pytest.raises(InputError, match="expected a number from the schedule at epoch 0"):
        fit(model(), dt.callbacks.LearningRateScheduler(lambda epoch: rate))


def test_an_optimizer_with_a_schedule_of_its_own_is_not_overruled():
    made = model(dt.optimizers.SGD(dt.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)))
    with pytest.raises(InputError, match="learning_rate is a number"):
        fit(made, dt.callbacks.LearningRateScheduler(lambda epoch: 0.1))


def test_a_rate_set_after_a_batch_holds_from_the_next_step():
    made = model()

    def lower(batch, logs):
        made.optimizer.learning_rate = 0.0

    fit(made, LambdaCallback(on_batch_end=lower), epochs=1)
    first = model()
    first.fit((X[:4], DATA[1][:4]), batch_size=4, shuffle=False, verbose=0)
    assert same(made.get_weights(), first.get_weights())


def test_numbers_that_would_need_other_slots_are_refused():
    made = model()

    def give_momentum(epoch, logs=None):
        made.optimizer.momentum = 0.9

    with pytest.raises(InputError, match="expected the slots"):
        fit(made, LambdaCallback(on_epoch_begin=give_momentum))


@pytest.mark.parametrize(
    ("hook", "epochs_ended", "steps"),
    [
        ("on_epoch_end", 1, 4),
        ("on_train_batch_end", 1, 1),
        ("on_epoch_begin", 1, 0),
        ("on_train_begin", 1, 0),
    ],
)
def test_a_stop_ends_training_at_once_and_the_epoch_with_it(hook, epochs_ended, steps):
    made, seen = model(), []

    def stop(*arguments):
        made.stop_training = True

    counted = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    history = fit(made, LambdaCallback(**{hook: stop}), counted)
    assert len(seen) == steps
    assert history.epoch == list(range(epochs_ended))


def test_the_next_fit_is_not_stopped():
    made = model()

    def stop(epoch, logs):
        made.stop_training = True

    fit(made, LambdaCallback(on_epoch_end=stop))
    assert made.stop_training
    assert fit(made).epoch == [0, 1, 2]


def test_weights_that_a_callback_sets_are_trained_on():
    made = model()

    def begin_again(epoch, logs):
        made.set_weights([np.zeros((1, 1)), np.zeros(1)])

    fit(
        made, LambdaCallback(on_epoch_end=lambda epoch, logs: begin_again(epoch, logs) if epoch < 2 else None)
    )
    assert same(made.get_weights(), by_hand([0.1]))


def test_every_hook_is_called_in_its_place():
    seen = []

    class Noting(Callback):
        pass

    for name in dir(Callback):
        if name.startswith("on_"):
            setattr(Noting, name, lambda self, *arguments, name=name: seen.append(name))
    made, note = model(), Noting()
    made.fit(DATA, epochs=2, batch_size=8, verbose=0, validation_data=DATA, callbacks=[note])
    test = ["on_test_begin", *["on_test_batch_begin", "on_test_batch_end"] * 2, "on_test_end"]
    epoch = ["on_epoch_begin", *["on_train_batch_begin", "on_train_batch_end"] * 2, *test, "on_epoch_end"]
    assert seen == ["on_train_begin", *epoch, *epoch, "on_train_end"]
    assert note.model is made
    assert (note.params["epochs"], note.params["steps"]) == (2, 2)
    seen.clear()
    made.evaluate(*DATA, batch_size=8, verbose=0, callbacks=[note])
    assert seen == test
    seen.clear()
    made.predict(X, batch_size=16, verbose=0, callbacks=[note])
    assert seen == ["on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end", "on_predict_end"]


def test_the_logs_of_a_batch_are_the_means_so_far():
    losses = []
    history = fit(
        model(dt.optimizers.SGD(0.0)),
        LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])),
    )
    each = [np.mean((part + 0.0) ** 2) for part in np.split(DATA[1], 4)]
    assert np.allclose(losses[:4], np.cumsum(each) / np.arange(1, 5), rtol=1e-5)
    assert history.history["loss"][0] == losses[3]
