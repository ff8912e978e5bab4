"""Loops of one's own with several models: each has its own loss and optimizer, and one learns through another."""

import numpy as np
import pytest
from clusters.own_loop import NOISE, REAL, run_two_models
from strategies.shipped import mirrored


class Dense:
    """A layer as the formulas have it."""

    def __init__(self, kernel, bias, tanh):
        self.kernel, self.bias, self.tanh = np.float64(kernel), np.float64(bias), tanh

    def forward(self, x):
        self.x = x
        self.y = x @ self.kernel + self.bias
        if self.tanh:
            self.y = np.tanh(self.y)
        return self.y

    def backward(self, by_y):
        by_y = by_y * (1 - self.y**2) if self.tanh else by_y
        self.gradients = [self.x.T @ by_y, by_y.sum(axis=0)]
        return by_y @ self.kernel.T


def forward(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def backward(layers, by_y):
    for layer in reversed(layers):
        by_y = layer.backward(by_y)
    return by_y, [gradient for layer in layers for gradient in layer.gradients]


def crossentropy(logits, target):
    """The sum over examples, divided by the global batch of 8, and its gradient."""
    chance = 1 / (1 + np.exp(-logits))
    loss = -(np.log(chance) if target else np.log(1 - chance)).sum() / 8
    return loss, (chance - target) / 8


def step(generator, discriminator, real, noise):
    """Both losses, and the gradients of discriminator and generator, of a whole batch."""
    on_real, by_logits = crossentropy(forward(discriminator, real), 1)
    _, by_real = backward(discriminator, by_logits)
    logits = forward(discriminator, forward(generator, noise))
    on_made, by_logits = crossentropy(logits, 0)
    _, by_made = backward(discriminator, by_logits)
    deceived, by_logits = crossentropy(logits, 1)
    through, _ = backward(discriminator, by_logits)
    _, by_both = backward(generator, through)
    summed = [one + other for one, other in zip(by_real, by_made, strict=True)]
    return [on_real + on_made, deceived], summed, by_both


def by_formulas(before):
    """The whole training, of batches that nobody cuts."""
    k1, b1, k2, b2, k3, b3, k4, b4 = before
    generator = [Dense(k1, b1, tanh=True), Dense(k2, b2, tanh=False)]
    discriminator = [Dense(k3, b3, tanh=True), Dense(k4, b4, tanh=False)]
    g = [value for layer in generator for value in (layer.kernel, layer.bias)]
    d = [value for layer in discriminator for value in (layer.kernel, layer.bias)]
    m, v = ([np.zeros_like(value) for value in g] for _ in range(2))
    momentum = [np.zeros_like(value) for value in d]
    losses = []
    for number, start in enumerate(range(0, len(REAL), 8), 1):
        rows = slice(start, start + 8)
        loss, of_d, of_g = step(generator, discriminator, np.float64(REAL[rows]), np.float64(NOISE[rows]))
        losses.append(loss)
        norm = np.sqrt(sum((each**2).sum() for each in of_d))
        assert norm > 0.1, "the limit of the norm is to count"
        for at, gradient in enumerate(of_d):
            momentum[at] = 0.9 * momentum[at] - 0.05 * gradient * 0.1 / norm
            d[at] += momentum[at]
        for at, gradient in enumerate(of_g):
            m[at] = 0.9 * m[at] + 0.1 * gradient
            v[at] = 0.999 * v[at] + 0.001 * gradient**2
            rate = 0.05 * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
            g[at] -= rate * m[at] / (np.sqrt(v[at]) + 1e-7)
    return losses, [*g, *d]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_generator_learns_through_a_discriminator_which_stays(replicas):
    losses, weights, before = run_two_models(mirrored(replicas))
    expected_losses, expected = by_formulas(before)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    for found, each in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, each, rtol=2e-4, atol=2e-5)
