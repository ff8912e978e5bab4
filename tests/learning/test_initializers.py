"""Initializers: Keras's distributions, names and configs."""

import json
from math import sqrt

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.learning.core import initializers
from dtrain.learning.core.configuration import to_data


def draw(identifier, shape=(200, 300)):
    return initializers.get(identifier)(shape, np.random.default_rng(0))


@every_row(
    "name, deviation, limit",
    [
        ("glorot_uniform", sqrt(2 / 500), sqrt(6 / 500)),
        ("glorot_normal", sqrt(2 / 500), 2.3 * sqrt(2 / 500)),
        ("he_uniform", sqrt(2 / 200), sqrt(6 / 200)),
        ("he_normal", sqrt(2 / 200), 2.3 * sqrt(2 / 200)),
        ("lecun_uniform", sqrt(1 / 200), sqrt(3 / 200)),
        ("lecun_normal", sqrt(1 / 200), 2.3 * sqrt(1 / 200)),
        ("random_uniform", 0.1 / sqrt(12), 0.05),
        ("random_normal", 0.05, 1),
        ("truncated_normal", 0.05 * 0.8796, 0.1),
        (initializers.VarianceScaling(3.0, "fan_out", "untruncated_normal"), sqrt(3 / 300), 1),
    ],
)
def test_distributions(name, deviation, limit):
    values = draw(name)
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(deviation, rel=0.02)
    assert abs(values.mean()) < 0.02 * deviation
    assert np.abs(values).max() <= limit * 1.0001


def test_fans_of_convolutions_count_the_receptive_field():
    values = draw("glorot_uniform", (3, 3, 8, 16))
    assert np.abs(values).max() <= sqrt(6 / (9 * 24))
    assert draw("glorot_uniform", (5,)).shape == (5,)
    assert draw("glorot_uniform", ()).shape == ()


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (2, 3, 4)])
def test_orthogonal(shape):
    q = draw("orthogonal", shape).reshape(-1, shape[-1])
    small = q @ q.T if q.shape[0] < q.shape[1] else q.T @ q
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-6)


def test_constants():
    assert draw("zeros", (2,)).tolist() == [0, 0]
    assert draw("Ones", (2,)).tolist() == [1, 1]
    assert draw(initializers.Constant([1, 2]), (2, 2)).tolist() == [[1, 2], [1, 2]]
    assert draw("identity", (2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_seed_of_its_own_wins():
    seeded = initializers.GlorotUniform(seed=3)
    first, second = (seeded((4,), np.random.default_rng(k)) for k in range(2))
    np.testing.assert_array_equal(first, second)


@every_row("name", initializers.CLASSES)
def test_configs_round_trip(name):
    initializer = initializers.CLASSES[name]()
    data = json.loads(json.dumps(to_data(initializer)))
    assert data["class_name"] == name
    shape = (3, 3)
    np.testing.assert_array_equal(draw(data, shape), draw(initializer, shape))


@pytest.mark.parametrize(
    "wrong",
    [
        "glorot",
        {"class_name": "Nope", "config": {}},
        {"class_name": "Zeros", "config": {"x": 1}},
        {"config": {}},
    ],
)
def test_unknown_ones_are_refused(wrong):
    with pytest.raises(SpecError):
        initializers.get(wrong)


def test_wrong_arguments_are_refused():
    with pytest.raises(SpecError, match="expected mode"):
        initializers.VarianceScaling(mode="fan")
    with pytest.raises(SpecError, match="two axes"):
        draw("orthogonal", (3,))
    with pytest.raises(SpecError, match="two axes"):
        draw("identity", (3,))
