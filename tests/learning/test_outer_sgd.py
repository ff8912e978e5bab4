"""The optimizer of servers in local steps, against the formulas of the papers, on plain arrays."""

import numpy as np
import pytest

from dtrain.learning import optimizers
from dtrain.learning.optimizers.update_rules import OuterSGD

RATE, MOMENTUM, N = 0.7, 0.9, 4


def differences(count=13, size=5):
    return np.random.default_rng(1).normal(size=(count, size))


def trained(rule, pushed, scales=None):
    value = np.ones(pushed.shape[1])
    slots = rule.initial_slots(value)
    for step, difference in enumerate(pushed):
        rule.update(value, difference, slots, step, rate_scale=scales[step] if scales else 1.0)
    return value


def test_it_is_the_nesterov_of_diloco():
    """The paper's form, which is torch's: buf = mu buf + d; w -= lr (d + mu buf)."""
    rule = OuterSGD(learning_rate=RATE, momentum=MOMENTUM, nesterov=True)
    value, buffer = np.ones(5), np.zeros(5)
    for difference in differences():
        buffer = MOMENTUM * buffer + difference
        value = value - RATE * (difference + MOMENTUM * buffer)
    np.testing.assert_allclose(trained(rule, differences()), value, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_delayed_momentum_moves_the_variables_at_every_nth_push(momentum):
    """Liu et al., 2024: w -= lr d / N; every N-th besides buf = mu buf + mean of N; w -= lr mu buf."""
    rule = OuterSGD(learning_rate=RATE, momentum=momentum, delay=N)
    value, buffer, since = np.ones(5), np.zeros(5), []
    for difference in differences():
        value = value - RATE * difference / N
        since.append(difference)
        if len(since) == N:
            buffer = momentum * buffer + np.mean(since, axis=0)
            value = value - RATE * momentum * buffer
            since = []
    np.testing.assert_allclose(trained(rule, differences()), value, rtol=1e-12)


def test_a_stale_push_counts_for_less_in_the_momentum_too():
    rule = OuterSGD(learning_rate=RATE, momentum=MOMENTUM, delay=N)
    scales = [1.0, 0.5, 0.25] * 4 + [1.0]
    scaled = differences() * np.array(scales)[:, None]
    np.testing.assert_allclose(trained(rule, differences(), scales), trained(rule, scaled), rtol=1e-12)


def test_it_travels_with_the_optimizer_of_the_replicas():
    inner = optimizers.serialize(optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 100)))
    rule = OuterSGD(learning_rate=RATE, momentum=MOMENTUM, delay=N, values=True, inner=inner)
    same = optimizers.from_config(optimizers.serialize(rule))
    assert same == rule
    assert optimizers.serialize(optimizers.from_config(same.inner)) == inner
