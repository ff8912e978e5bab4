"""Constraints hold after every update: in fit, with replicas, and in loops of one's own.

`layer_programs.limits` compares trained numbers with TensorFlow's.
"""

import numpy as np
import pytest
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.errors import SpecError
from dtrain.strategies.interface import Problem
from dtrain.strategies.single import SingleStrategy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
Y = RNG.normal(size=(8, 2)).astype(np.float32)


def model():
    made = dt.Sequential(
        [
            dt.layers.Dense(4, kernel_constraint=dt.constraints.MaxNorm(0.5), input_shape=(3,)),
            dt.layers.Dense(2, kernel_constraint="non_neg"),
        ]
    )
    made.compile("sgd", "mse")
    return made


def assert_limited(weights):
    first, second = (each for each in weights if each.ndim == 2)
    assert np.linalg.norm(first, axis=0).max() <= 0.5 + 1e-6
    assert np.linalg.norm(first, axis=0).max() > 0.3
    assert second.min() >= 0
    assert second.max() > 0


def test_replicas_keep_them_as_one_process_does():
    found = []
    for strategy in (SingleStrategy(), mirrored(2)):
        with strategy.scope():
            made = model()
            made.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0)
        assert_limited(made.get_weights())
        found.append(made.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_loops_of_ones_own_keep_them():
    made = model()
    variables = made.trainable_variables
    dt.optimizers.SGD(0.1).apply_gradients([(np.ones(each.shape, np.float32), each) for each in variables])
    assert_limited([np.asarray(each) for each in variables])


def test_a_constraint_of_ones_own():
    class Rounded(dt.constraints.Constraint):
        def __call__(self, w):
            return np.round(w, 1)

    made = dt.Sequential([dt.layers.Dense(2, kernel_constraint=Rounded(), input_shape=(3,))])
    made.compile("sgd", "mse")
    made.fit(X, Y, epochs=1, verbose=0)
    kernel = made.get_weights()[0]
    np.testing.assert_allclose(kernel, np.round(kernel, 1), atol=1e-7)


def test_where_variables_are_updated_in_parts_they_are_refused():
    with pytest.raises(SpecError, match=r"found one of dense/kernel.*--strategy mirrored"):
        Problem(
            variables=(),
            initial_values=dict,
            optimizer={},
            max_steps=1,
            constraints=model().network.graph.constraints(),
        ).check_unconstrained()


def test_an_unknown_name_is_answered():
    with pytest.raises(SpecError, match="unknown constraint 'max_nrm'; do you mean max_norm"):
        dt.constraints.get("max_nrm")
