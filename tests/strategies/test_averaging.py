"""A new strategy is one file: `fit`, callbacks, checkpoints and evaluation take it as they take those of the
house.
"""

import numpy as np
import pytest
from strategies.averaging import AveragingStrategy

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

BATCH = 6
chance = np.random.default_rng(4)
X = chance.normal(size=(40, 5)).astype(np.float32)
Y = chance.integers(0, 3, 40)


class BreaksOff(dt.callbacks.Callback):
    """Ends the program at the end of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise SystemExit(143)


def built(strategy):
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Dense(8, activation="tanh", input_shape=(5,)),
                dt.layers.Dropout(0.3),
                dt.layers.BatchNormalization(),
                dt.layers.Dense(3),
            ]
        )
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(dt.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def fitted(model, *callbacks, x=X, y=Y, epochs=3):
    slower = dt.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
    return model.fit(
        x, y, batch_size=BATCH, epochs=epochs, validation_data=(X[:9], Y[:9]), verbose=0,
        callbacks=[slower, *callbacks],
    ).history  # fmt: skip


def plain(strategy):
    """A model that has the same gradients however its batches are cut."""
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(8, "tanh", input_shape=(5,)), dt.layers.Dense(3)])
        model.compile("adam", dt.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_that_average_follow_one_process(replicas):
    found, expected = plain(AveragingStrategy(replicas)), plain(SingleStrategy())
    assert isinstance(found.strategy, dt.Strategy)
    histories = [fitted(model, x=X[:36], y=Y[:36]) for model in (found, expected)]
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[1].items():
        np.testing.assert_allclose(histories[0][name], values, rtol=1e-4)
    for weight, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.evaluate(X, Y, verbose=0), expected.evaluate(X, Y, verbose=0), rtol=1e-4)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch_hooks", [True, False])
def test_every_replica_computes_its_part_of_every_batch(batch_hooks):
    """Batches of 6, the last one of an epoch of 4, in 3 parts: 2, 2, 2 and 2, 2, none."""
    strategy, seen, steps = AveragingStrategy(3), [], []

    class Noting(dt.Sequential):
        def train_step(self, step):
            seen.append(sorted(step.x[:, 0].tolist()))
            return super().train_step(step)

    with strategy.scope():
        model = Noting([dt.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
    note = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    x = np.arange(16, dtype=np.float32).reshape(-1, 1)
    model.fit(x, x, batch_size=6, shuffle=False, epochs=2, verbose=0, callbacks=[note] if batch_hooks else [])
    pairs = [[float(row), float(row + 1)] for row in range(0, 16, 2)]
    assert [sorted(seen[:8]), sorted(seen[8:])] == [pairs, pairs]
    assert steps == ([0, 1, 2] * 2 if batch_hooks else [])


@pytest.mark.parametrize("after", [2, 3])
def test_it_goes_on_from_the_checkpoint_of_a_callback(after, tmp_path):
    straight = built(AveragingStrategy(2))
    history = fitted(straight)

    def backup():
        return dt.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(SystemExit):
        fitted(built(AveragingStrategy(2)), backup(), BreaksOff(1))
    again = built(AveragingStrategy(after))
    resumed = fitted(again, backup())
    assert len(resumed["loss"]) == len(history["loss"])
    assert resumed["loss"][:2] == history["loss"][:2]
    same = [np.array_equal(*both) for both in zip(again.get_weights(), straight.get_weights(), strict=True)]
    assert all(same) == (after == 2)


def test_a_saved_model_goes_on_in_one_process_with_its_optimizer(tmp_path):
    straight, model = plain(SingleStrategy()), plain(AveragingStrategy(2))
    for each in (straight, model):
        fitted(each, x=X[:36], y=Y[:36])
    model.save(tmp_path / "model.dtrain")
    with SingleStrategy().scope():
        loaded = dt.load_model(tmp_path / "model.dtrain")
    for each in (straight, loaded):
        fitted(each, x=X[:36], y=Y[:36], epochs=1)
    for weight, other in zip(loaded.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-3, atol=1e-4)
