"""A strategy of one's own is one file of at most 60 lines: `fit` trains with it, callbacks and numbers
included.
"""

from pathlib import Path

import numpy as np
import pytest
from strategies.averaging import AveragingStrategy
from strategies.every_second import EverySecondStrategy
from strategies.two_models import TwoModels

import dtrain as dt

X = np.random.default_rng(3).normal(size=(24, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)
RATE = np.float32(0.1)


def fitted(strategy, *callbacks, epochs=2):
    with strategy.scope():
        model = dt.Sequential(
            [dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(3,))]
        )
        model.compile(dt.optimizers.SGD(RATE), "mse", metrics=["mae"])
    history = model.fit(
        X, Y, batch_size=6, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model.get_weights()[0], history.history


def descended(kernel, rows):
    x, y = X[rows], Y[rows]
    return kernel - RATE * (2 / len(x)) * x.T @ (x @ kernel - y)


def test_every_second_gradient_is_applied_and_every_batch_counts():
    kernel = np.zeros((3, 1), np.float32)
    for step in range(8):
        if step % 2:
            kernel = descended(kernel, slice(step % 4 * 6, step % 4 * 6 + 6))
    found, history = fitted(EverySecondStrategy())
    np.testing.assert_allclose(found, kernel, rtol=1e-5)
    assert len(history["loss"]) == len(history["mae"]) == 2


def test_two_models_are_averaged_after_two_steps_of_their_own():
    models = [np.zeros((3, 1), np.float32)] * 2
    for step in range(8):
        first = step % 4 * 6
        parts = slice(first, first + 3), slice(first + 3, first + 6)
        models = [descended(model, part) for model, part in zip(models, parts, strict=True)]
        average = sum(models) / 2
        models = [average] * 2 if step % 2 else models
    found, history = fitted(TwoModels())
    np.testing.assert_allclose(found, average, rtol=1e-5)
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize("make", [EverySecondStrategy, TwoModels, lambda: AveragingStrategy(3)])
def test_callbacks_see_every_batch_once_and_may_end_training(make):
    seen = []
    note = dt.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: seen.append(("end", batch)),
    )

    class Ends(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.model.stop_training or len(seen) == 12

    fitted(make(), note, Ends())
    batches = [0, 1, 2, 3, 0, 1]
    assert seen == [(what, batch) for batch in batches for what in ("begin", "end")]


@pytest.mark.parametrize("name", ["averaging", "every_second", "two_models"])
def test_each_is_one_short_file(name):
    lines = Path(__file__).with_name(f"{name}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60
