"""A layer's gradients against finite differences, along random directions.

Layers compute in float32, so a single derivative is too noisy to compare; along a direction that moves every
element the sums are large enough. Inputs are evenly spaced and shuffled, so that no two change order and none
changes sign: kinks are never crossed.
"""

import numpy as np

from dtrain.learning.core import initializers
from dtrain.learning.layers import Call, Layer

STEP = 4e-3


def spaced(shape, rng):
    """Shuffled, evenly spaced float32 numbers in (-2, 2), none of them 0."""
    size = int(np.prod(shape))
    values = (np.arange(size) + 0.3) * (4 / size) - 2
    return rng.permutation(values).astype(np.float32).reshape(shape)


def initial_weights(layer: Layer, shape, rng):
    """Values for all weights; random where they would begin as constants."""
    values = {}
    for weight in layer.declare(shape):
        drawn = initializers.get(weight.initializer)(weight.shape, rng)
        values[weight.name] = (
            drawn if np.ptp(drawn) > 0 else (drawn + rng.uniform(0.1, 0.5, weight.shape)).astype(np.float32)
        )
    return values


def check_gradients(layer: Layer, x, weights, *, training=True):
    """Assert that `backward` is the derivative of `forward` by x (an array or a list of them) and by each
    trained weight.
    """
    rng = np.random.default_rng(1)
    trained = [weight.name for weight in layer.declare(_shapes(x)) if weight.trainable]

    def run(x, weights):
        y, cache = layer.forward(weights, x, call := Call(training, np.random.default_rng(2)))
        return y, cache, call

    before = [each.copy() for each in _as_list(x)]
    y, cache, call = run(x, weights)
    for each, copy in zip(_as_list(x), before, strict=True):
        np.testing.assert_array_equal(each, copy, "forward must leave its input alone")
    dy = [rng.standard_normal(each.shape).astype(np.float32) for each in _as_list(y)]

    def value(x, weights):
        outputs = _as_list(run(x, weights)[0])
        return sum(np.vdot(output.astype(np.float64), each) for output, each in zip(outputs, dy, strict=True))

    gradients = {name: np.full_like(weights[name], np.nan) for name in trained}
    arriving = [each.copy() for each in dy]
    dx = layer.backward(weights, cache, arriving if isinstance(y, list) else arriving[0], gradients, call)

    for name, gradient in gradients.items():
        direction = rng.choice([-1, 1], gradient.shape).astype(np.float32)
        _compare(
            lambda t: value(x, {**weights, name: weights[name] + np.float32(t) * direction}),  # noqa: B023
            gradient,
            direction,
            name,
        )
    xs, dxs = _as_list(x), _as_list(dx)
    assert [each.shape for each in xs] == [each.shape for each in dxs]
    for index, gradient in enumerate(dxs):
        direction = rng.choice([-1, 1], gradient.shape).astype(np.float32)

        def moved(t, index=index, direction=direction):
            inputs = [each + np.float32(t) * direction if k == index else each for k, each in enumerate(xs)]
            return value(inputs if isinstance(x, list) else inputs[0], weights)

        _compare(moved, gradient, direction, f"input {index}")


def _compare(value_at, gradient, direction, what):
    expected = (value_at(STEP) - value_at(-STEP)) / (2 * STEP)
    found = np.vdot(gradient.astype(np.float64), direction)
    scale = np.linalg.norm(gradient) + 0.1
    assert abs(found - expected) < 2e-2 * scale, f"{what}: gradient {found}, finite difference {expected}"


def _as_list(arrays):
    return arrays if isinstance(arrays, list) else [arrays]


def _shapes(x):
    return [each.shape[1:] for each in x] if isinstance(x, list) else x.shape[1:]
