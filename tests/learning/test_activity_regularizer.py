"""Penalties on the outputs of layers: in the loss, and in the gradients, by numerical derivatives."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.learning.core import regularizers

CHANCE = np.random.default_rng(5)
L = dt.layers


def gradients_and_loss(model, x, y):
    places = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.variables}
    loss = dt.losses.SparseCategoricalCrossentropy()
    result = model.network.loss_and_gradients(model.arrays, x, y, loss, places, rng=CHANCE)
    return places, result.loss


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (
            [L.Dense(4, "tanh", activity_regularizer=dt.regularizers.L1L2(0.02, 0.3)), L.Dense(3, "softmax")],
            (5,),
        ),
        ([L.Dense(3, "softmax", activity_regularizer="l2")], (5,)),
        (
            [
                L.Conv2D(2, 3, activation="tanh", activity_regularizer=dt.regularizers.L2(0.1)),
                *(L.MaxPooling2D(2), L.Flatten(), L.Dense(3, "softmax")),
            ],
            (6, 6, 1),
        ),
    ],
    ids=["hidden", "a head whose loss would take its logits", "a convolution that pooling would take in"],
)
def test_the_gradient_is_that_of_the_loss(layers, shape):
    model = dt.Sequential([dt.Input(shape), *layers])
    x, y = CHANCE.normal(size=(4, *shape)).astype(np.float32), np.array([0, 1, 2, 1])
    found, loss = gradients_and_loss(model, x, y)
    assert loss == pytest.approx(model_loss(model, x, y), rel=1e-5)
    for name, gradient in found.items():
        direction = CHANCE.choice([-1.0, 1.0], gradient.shape).astype(np.float32)
        size = 2e-3
        before = model.arrays[name].copy()
        values = []
        for sign in (1, -1):
            model.arrays = {**model.arrays, name: before + np.float32(sign * size) * direction}
            values.append(model_loss(model, x, y))
        model.arrays = {**model.arrays, name: before}
        assert (values[0] - values[1]) / (2 * size) == pytest.approx(
            np.vdot(gradient, direction), rel=0.03, abs=4e-3
        )


def model_loss(model, x, y):
    """The mean loss and each penalty divided by the examples, from the outputs of layers alone."""
    outputs = [found[0] for _, found in model.network.outputs_of_layers(model.arrays, x)]
    total = float(dt.losses.SparseCategoricalCrossentropy()(y, model.predict(x, verbose=0)))
    for layer in model.network.layers:
        penalty = regularizers.get(getattr(layer, "activity_regularizer", None))
        if penalty is not None:
            value = outputs[list(model.network.layers).index(layer)]
            total += penalty(np.asarray(value)) / len(x)
    return total
