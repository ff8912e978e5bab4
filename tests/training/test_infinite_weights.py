"""A weight beyond the range of its numbers, as fp16 makes of one above 65504, is named where it is met."""

import re

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import NonFiniteGradientError


def test_a_weight_that_has_become_infinite_is_named_by_the_replica(capsys):
    model = dt.Sequential([dt.layers.Dense(1, name="slope", input_shape=(2,))])
    model.compile("sgd", "mse")
    with np.errstate(over="ignore"):
        weight = np.float16(70000.0).astype(np.float32)
    model.set_weights([np.full((2, 1), weight), np.zeros(1, np.float32)])
    named = "variable slope/kernel: expected finite numbers, found infinity, first at [0, 0] of shape (2, 1)"
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    with np.errstate(invalid="ignore"), pytest.raises(NonFiniteGradientError, match=re.escape(named)):
        model.fit(x, y, batch_size=4, verbose=0)  # no step can be made any more
    # The strategy of this process may have made steps before, in other calls of fit.
    step = r"step 1( of this fit \(global step \d+\))?"
    said = rf"dtrain: {step}: a gradient was not applied: {re.escape(named)}\n"
    assert re.fullmatch(said, capsys.readouterr().err)
