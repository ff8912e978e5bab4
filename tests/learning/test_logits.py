"""Cross-entropies of probabilities are computed from what goes into the softmax or sigmoid, as Keras's fit
does.
"""

from dataclasses import replace

import numpy as np
import pytest
from learning.finite_differences import spaced
from row_by_row import every_row

from dtrain.learning import layers, losses
from dtrain.learning.core import activations
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers import Input


def rng():
    return np.random.default_rng(0)


def step(network, weights, x, y, loss):
    gradients = {v.name: np.full(v.shape, np.nan, np.float32) for v in network.variables}
    return network.loss_and_gradients(weights, x, y, loss, gradients, rng=rng()), gradients


def ending_in(activation, *, as_layer=False):
    last = [layers.Dense(3), layers.Softmax() if activation == "softmax" else layers.Activation(activation)]
    return Network(
        [Input((2,)), *(last if as_layer else [layers.Dense(3, activation=activation, name="dense")])]
    )


@every_row("as_layer", [False, True])
@every_row(
    "activation, loss, y",
    [
        ("softmax", losses.SparseCategoricalCrossentropy(), [2, 0]),
        ("softmax", losses.CategoricalCrossentropy(label_smoothing=0.1), np.eye(3)[[2, 0]]),
        ("sigmoid", losses.BinaryCrossentropy(), np.eye(3)[[2, 0]]),
    ],
)
def test_a_loss_of_probabilities_is_computed_from_logits(activation, loss, y, as_layer):
    network, plain = ending_in(activation, as_layer=as_layer), ending_in("linear")
    weights = {
        name: 60 * value for name, value in plain.initial_values(0).items()
    }  # probabilities that round to 0 and 1
    x = spaced((2, 2), rng())
    found, gradients = step(network, weights, x, y, loss)
    expected, expected_gradients = step(plain, weights, x, y, replace(loss, from_logits=True))
    assert found.loss == expected.loss
    assert found.loss > 20
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, expected_gradients[name])
    np.testing.assert_allclose(found.outputs, activations.get(activation)(expected.outputs))
    evaluated = network.loss_and_outputs(weights, x, y, loss)
    assert evaluated.loss == pytest.approx(found.loss)
    np.testing.assert_array_equal(evaluated.outputs, network.predict(weights, x))


def test_probabilities_that_are_read_elsewhere_stay_probabilities():
    x = Input((2,))
    probabilities = layers.Dense(3, activation="softmax")(x)
    network = Network.from_graph(x, [probabilities, layers.Dense(1)(probabilities)])
    heads = [losses.SparseCategoricalCrossentropy(), losses.MeanSquaredError()]
    weights, x, y = (
        network.initial_values(0),
        spaced((4, 2), rng()),
        [np.array([0, 1, 2, 0]), np.ones((4, 1))],
    )
    first, second = network.predict(weights, x)
    expected = heads[0](y[0], first) + heads[1](y[1], second)
    assert step(network, weights, x, y, heads)[0].loss == pytest.approx(expected)
