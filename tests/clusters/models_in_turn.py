"""Two models that train in turn, beside equal models that make the same calls alone: their bits are equal.

As a program it prints in each task which of these promises hold there.
"""

import sys
from pathlib import Path

import numpy as np

import dtrain as dt

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(32, 6)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def network(width, optimizer):
    """Always with the same weights."""
    layers = [dt.layers.Dense(width, activation="tanh", input_shape=(6,)), dt.layers.Dense(1)]
    model = dt.Sequential(layers)
    model.compile(optimizer, "mse")
    chance = np.random.default_rng(width)
    model.set_weights([chance.normal(size=value.shape).astype(np.float32) for value in model.get_weights()])
    return model


def student():
    return network(5, dt.optimizers.Adam(dt.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)))


def teacher():
    return network(3, dt.optimizers.SGD(0.05, momentum=0.9))


def fit(model):
    model.fit(X, Y, epochs=1, batch_size=8, shuffle=False, verbose=0)


def on_batch(model):
    model.train_on_batch(X[:8], Y[:8])


def same(one, other):
    """The bits; in the task whose files count also how many updates there were."""
    if one.strategy.is_leader and not int(one.optimizer.iterations) == int(other.optimizer.iterations) > 0:
        return False
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def promises(folder):
    """Whether each one holds, by its name."""
    one, other = student(), teacher()
    for call, model in (
        (fit, one),
        (fit, other),
        (fit, one),
        (on_batch, other),
        (on_batch, one),
        (fit, other),
    ):
        call(model)
    on_batch(one)
    alone, other_alone = student(), teacher()
    for call in (fit, fit, on_batch, on_batch):
        call(alone)
    for call in (fit, on_batch, fit):
        call(other_alone)
    found = {"in turn": same(one, alone), "the other": same(other, other_alone)}
    one.save(folder / "model")
    loaded = dt.load_model(folder / "model")
    for model in (loaded, other, one, loaded, alone, alone, one):
        fit(model)
    found["saved and loaded"] = same(one, alone)
    found["loaded"] = same(loaded, alone)
    return found


if __name__ == "__main__":
    with dt.get_strategy().scope():
        print("PROMISES", promises(Path(sys.argv[1])), flush=True)
