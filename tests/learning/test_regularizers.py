"""Regularizers: values, gradients, names and configs."""

import json

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.learning.core import regularizers
from dtrain.learning.core.configuration import to_data

WEIGHT = np.array([[1.0, -2.0], [0.5, 0.0]], np.float32)


@every_row(
    "identifier, value, gradient",
    [
        ("l1", 0.035, [[0.01, -0.01], [0.01, 0]]),
        ("l2", 0.0525, [[0.02, -0.04], [0.01, 0]]),
        ("l1_l2", 0.0875, [[0.03, -0.05], [0.02, 0]]),
        (regularizers.L1L2(l2=1.0), 5.25, [[2, -4], [1, 0]]),
        ({"class_name": "L1", "config": {"l1": 1.0}}, 3.5, [[1, -1], [1, 0]]),
    ],
)
def test_value_and_gradient(identifier, value, gradient):
    regularizer = regularizers.get(identifier)
    assert regularizer(WEIGHT) == pytest.approx(value, rel=1e-6)
    total = np.ones_like(WEIGHT)
    regularizer.add_gradient(WEIGHT, total)
    np.testing.assert_allclose(total - 1, gradient, atol=1e-6)


@pytest.mark.parametrize(
    "regularizer", [regularizers.L1(0.1), regularizers.L2(0.2), regularizers.L1L2(0.1, 0.2)]
)
def test_configs_round_trip(regularizer):
    assert regularizers.get(json.loads(json.dumps(to_data(regularizer)))) == regularizer


def test_none_and_unknown():
    assert regularizers.get(None) is None
    with pytest.raises(SpecError, match="unknown regularizer 'l3'"):
        regularizers.get("l3")
