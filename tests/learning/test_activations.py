"""Activations: extreme values, purity, names. Their numbers are checked against Keras, their gradients
elsewhere.
"""

import math

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.learning.core import activations

EXTREMES = np.array([[-1e4, -90, -20, -1, 0, 1, 20, 80]], np.float32)


@every_row("name", [a.name for a in activations.CATALOGUE if a.name != "exponential"])
def test_extremes_are_finite_and_silent(name):
    activation = activations.get(name)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, kept = activation.apply(EXTREMES.copy())
        dx = activation.apply_back(kept, np.ones_like(EXTREMES))
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    assert y.dtype == dx.dtype == np.float32


@every_row("activation", activations.CATALOGUE, ids=lambda a: a.name)
def test_calling_leaves_the_argument_alone(activation):
    x = np.array([[-1, 0.5, 3]], np.float32)
    activation(x)
    assert x.tolist() == [[-1, 0.5, 3]]
    activation(np.array([[1, 2]]))  # integers are fine


def test_small_probabilities_keep_their_precision():
    x = np.array([-30.0, -10.0], np.float32)
    np.testing.assert_allclose(
        activations.sigmoid(x), [1 / (1 + math.exp(30)), 1 / (1 + math.exp(10))], rtol=1e-6
    )


def test_gelu_is_exact():
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    expected = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    np.testing.assert_allclose(activations.get("gelu")(x), expected, rtol=1e-5, atol=1e-6)


def test_softmax_of_no_examples():
    assert activations.softmax(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_names():
    assert activations.get(None) is activations.linear
    assert activations.get(activations.relu) is activations.relu
    with pytest.raises(
        SpecError,
        match=r"unknown activation 'rely'; do you mean relu\? .*Activation\(name, forward, derivative\)",
    ):
        activations.get("rely")
