"""The steps that replicas in threads make together: which parts make a version, and what becomes of the others."""

import threading

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.errors import NonFiniteGradientError
from dtrain.strategies.mirrored import MirroredThreads

EXAMPLES, BATCH = 24, 6
chance = np.random.default_rng(7)
X = chance.normal(size=(EXAMPLES, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def model_of(strategy, act=None, optimizer="sgd"):
    """A model of one layer; `act` is called with each step, before it computes."""

    class Acting(dt.Sequential):
        def train_step(self, step):
            if act is not None:
                act(step)
            return super().train_step(step)

    with strategy.scope():
        model = Acting([dt.layers.Dense(1, input_shape=(4,))])
        model.compile(optimizer, "mse")
    return model


def mirrored(**settings):
    return MirroredThreads(MirroredSection(**settings))


def rank(step):
    return step._replica.rank


def fit(model, epochs=2, **more):
    return model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **more).history["loss"]


@every_row("parts, replicas", [(2, 1), (3, 1), (3, 2), (4, 3), (5, 2)])
def test_fewer_replicas_than_parts_compute_several_of_each_step(parts, replicas):
    expected = model_of(mirrored(replicas=parts), optimizer="adam")
    found = model_of(mirrored(replicas=replicas, replicas_to_aggregate=parts), optimizer="adam")
    assert fit(found) == fit(expected)
    assert np.array_equal(found.get_weights()[0], expected.get_weights()[0])


def test_a_slow_replica_costs_a_step_with_backups_nothing():
    """Replica 1 begins its first part and does not go on before every step is made."""
    made, seen, before = threading.Event(), [], threading.enumerate()

    def act(step):
        seen.append(rank(step))
        if rank(step) == 1:
            assert made.wait(60)

    class Releases(dt.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                made.set()

    model = model_of(mirrored(replicas=3, backup_workers=1), act)
    assert model.strategy.num_replicas_in_sync == 2
    losses = fit(model, callbacks=[Releases()])
    assert len(losses) == 2
    assert seen.count(1) == 1
    assert seen.count(0) == seen.count(2) == 8
    left = [each for each in threading.enumerate() if each not in before]
    assert not [each for each in left if each.name.startswith("replica")]


@pytest.mark.parametrize("on_stale", ["skip", "retry_same_batch"])
def test_a_part_that_came_too_late_is_left_out_or_computed_again(on_stale):
    """Replica 1 is late with the second batch. Weights stay, so that the loss of the epoch shows its rows."""
    late = threading.Event()

    def act(step):
        if rank(step) == 1 and not late.is_set():
            assert late.wait(60)

    class LetsGoOn(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if on_stale == "retry_same_batch":
                late.set()

        def on_epoch_end(self, epoch, logs=None):
            late.set()

    strategy = mirrored(replicas=2, backup_workers=1, on_stale=on_stale)
    model = model_of(strategy, act, dt.optimizers.SGD(0.0))
    [found] = fit(model, epochs=1, callbacks=[LetsGoOn()])
    losses = ((model.predict(X) - Y) ** 2).reshape(-1, BATCH).mean(axis=1)
    if on_stale == "retry_same_batch":
        np.testing.assert_allclose(found, losses.mean(), rtol=1e-5)
    else:  # the next pass's first batch takes its place
        np.testing.assert_allclose(found, losses[[0, 2, 3, 0]].mean(), rtol=1e-5)


@pytest.mark.parametrize("section", [MirroredSection, CentralStorageSection])
def test_a_part_that_is_not_finite_is_left_out_and_the_others_make_the_step(section, capsys):
    def act(step):
        if rank(step) == 1 and step._replica.training.global_step == 1:
            step.x[:] = np.nan

    model = model_of(MirroredThreads(section(replicas=3)), act)
    data = X.copy(), Y
    losses = model.fit(*data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert all(np.isfinite(losses))
    assert "a gradient was not applied: inputs: expected finite numbers" in capsys.readouterr().err


def test_a_batch_of_which_no_part_is_finite_makes_no_step():
    seen = []

    def act(step):
        seen.append(rank(step))
        if len(seen) <= 2:
            step.x = step.x * np.nan

    model = model_of(mirrored(replicas=2), act)
    model.fit(X, Y, batch_size=BATCH, steps_per_epoch=3, shuffle=False, verbose=0)
    assert len(seen) == 8, "four batches, for three steps"


def test_the_policy_fail_ends_training_with_the_reason():
    def act(step):
        step.x = step.x * np.nan

    with pytest.raises(NonFiniteGradientError, match=r"step 1 holds NaN .*inputs: expected finite"):
        fit(model_of(mirrored(replicas=2, nan_policy="fail"), act))
