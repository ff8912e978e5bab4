"""A model's optimizer state is the model's own: another model that trains in between changes nothing.

Real clusters: `tests/clusters/test_cluster_models_in_turn.py`.
"""

import gc

import numpy as np
import pytest
from clusters.models_in_turn import X, Y, fit, network, on_batch, promises, same, student, teacher
from row_by_row import every_row
from strategies.shipped import mirrored
from strategies.test_several_models import Dense, backward, crossentropy, forward

import dtrain as dt
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import CentralStorageSection, RunSpec, training_section
from dtrain.errors import InputError
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies.mirrored import CentralStorage
from dtrain.strategies.single import SingleStrategy

STRATEGIES = {
    "single": SingleStrategy,
    "mirrored": lambda: mirrored(2),
    "central_storage": lambda: CentralStorage(CentralStorageSection(replicas=2)),
}


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_models_that_train_in_turn_have_the_bits_of_the_same_calls_alone(make, tmp_path):
    with make().scope():
        found = promises(tmp_path)
    assert found == dict.fromkeys(["in turn", "the other", "saved and loaded", "loaded"], True)


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_model_that_a_callback_trains_changes_nothing_either(make):
    """Nor does the model that is trained around it change that one."""
    with make().scope():
        outer, inner, outer_alone, inner_alone = student(), teacher(), student(), teacher()
    train_inner = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: on_batch(inner))
    for _ in range(2):
        outer.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[train_inner])
        fit(outer_alone)
    for _ in range(2 * 4):
        on_batch(inner_alone)
    assert same(outer, outer_alone)
    assert same(inner, inner_alone)
    fit(outer)
    fit(outer_alone)
    assert same(outer, outer_alone)


def test_what_is_saved_after_another_model_has_trained_has_the_optimizer_s_state(tmp_path):
    with SingleStrategy().scope():
        one, other, alone = student(), teacher(), student()
        for model in (one, other, alone, alone):
            fit(model)
        one.save(tmp_path / "model")
        loaded = dt.load_model(tmp_path / "model")
        fit(loaded)
    assert same(loaded, alone)


# A generator that learns through the layers of a frozen discriminator

RATE, B1, B2, EPSILON = 0.05, 0.9, 0.999, 1e-7
STEPS = 6


class Adam:
    """As the formulas have it."""

    def __init__(self, values):
        self.values, self.steps = values, 0
        self.m, self.v = ([np.zeros_like(value) for value in values] for _ in range(2))

    def apply(self, gradients):
        self.steps += 1
        rate = RATE * np.sqrt(1 - B2**self.steps) / (1 - B1**self.steps)
        for value, m, v, gradient in zip(self.values, self.m, self.v, gradients, strict=True):
            m += (1 - B1) * (gradient - m)
            v += (1 - B2) * (gradient**2 - v)
            value -= rate * m / (np.sqrt(v) + EPSILON)


def adversaries():
    loss = dt.losses.BinaryCrossentropy(from_logits=True)
    d = dt.Sequential([dt.layers.Dense(4, activation="tanh", input_shape=(2,)), dt.layers.Dense(1)])
    g = dt.Sequential([dt.layers.Dense(4, activation="tanh", input_shape=(3,)), dt.layers.Dense(2)])
    d.compile(dt.optimizers.Adam(RATE), loss)
    noise = dt.Input((3,))
    both = dt.Model(noise, d(g(noise)))
    both.compile(dt.optimizers.Adam(RATE), loss)
    return d, g, both


def layers_of(model):
    k1, b1, k2, b2 = model.get_weights()
    return [Dense(k1, b1, tanh=True), Dense(k2, b2, tanh=False)]


def values_of(layers):
    return [value for layer in layers for value in (layer.kernel, layer.bias)]


@pytest.mark.parametrize("make", [SingleStrategy, lambda: mirrored(2)], ids=["single", "mirrored"])
def test_a_discriminator_and_a_model_that_shares_its_layers_have_a_state_each(make):
    chance = np.random.default_rng(5)
    real, noise = chance.normal(size=(STEPS, 8, 2)), chance.normal(size=(STEPS, 8, 3))
    real, noise = real.astype(np.float32), noise.astype(np.float32)
    with make().scope():
        d, g, both = adversaries()
    of_d, of_g = layers_of(d), layers_of(g)
    adam_d, adam_g = Adam(values_of(of_d)), Adam(values_of(of_g))
    for x, z in zip(real, noise, strict=True):
        made = g.predict_on_batch(z)
        d.trainable = True
        d.train_on_batch(x, np.ones((8, 1), np.float32))
        d.train_on_batch(made, np.zeros((8, 1), np.float32))
        d.trainable = False
        both.train_on_batch(z, np.ones((8, 1), np.float32))

        made = forward(of_g, np.float64(z))
        for batch, target in ((np.float64(x), 1), (made, 0)):
            _, by_logits = crossentropy(forward(of_d, batch), target)
            adam_d.apply(backward(of_d, by_logits)[1])
        _, by_logits = crossentropy(forward(of_d, forward(of_g, np.float64(z))), 1)
        adam_g.apply(backward(of_g, backward(of_d, by_logits)[0])[1])
    for found, expected in zip(
        [*d.get_weights(), *g.get_weights()], [*values_of(of_d), *values_of(of_g)], strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    assert [int(model.optimizer.iterations) for model in (d, both)] == [2 * STEPS, STEPS]


# One optimizer object


def test_an_optimizer_of_two_models_is_refused_as_by_keras_2_15():
    shared = dt.optimizers.Adam(0.1)
    with SingleStrategy().scope():
        one, other = network(5, shared), network(3, shared)
        fit(one)
        one.compile(shared, "mae")
        fit(one)
        with pytest.raises(InputError, match=r"expected an optimizer of its own for .*, found the Adam of"):
            fit(other)
        with pytest.raises(InputError, match="compile each model with another object"):
            on_batch(other)
        other.evaluate(X, Y, verbose=0)
        del one
        gc.collect()
        fit(other)


# Resume


def in_turn(folder, calls, attempt, dies_in=None):
    """What a process of a launch makes that may die in a call of `fit`, or the one that is started after it."""
    spec = RunSpec(training=training_section(strategy="single"))
    cluster = ClusterSpec.from_lists(worker=["localhost:1"])
    place = TaskAssignment(TaskId.parse("worker:0"), cluster, spec, "run", run_dir=folder, attempt=attempt)
    strategy = SingleStrategy(place)
    with strategy.scope():
        models = {"s": student(), "t": teacher()}
    for number, name in enumerate(calls):

        def dies(batch, logs, number=number):
            if number == dies_in and batch == 2:
                raise KeyboardInterrupt

        end = dt.callbacks.LambdaCallback(on_train_batch_end=dies)
        try:
            models[name].fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[end])
        except KeyboardInterrupt:
            break
    strategy.close()
    return models.values()


@every_row("dies_in", range(5))
def test_a_process_that_is_started_again_knows_the_state_of_both_models(tmp_path, dies_in):
    """Of models that trained before, whose calls of `fit` are passed over, and of the one that was training."""
    with SingleStrategy().scope():
        alone = student(), teacher()
    for model, calls in zip(alone, (3, 2), strict=True):
        for _ in range(calls):
            fit(model)
    in_turn(tmp_path, "ststs", 0, dies_in)
    again = in_turn(tmp_path, "ststs", 1)
    assert all(map(same, again, alone))
