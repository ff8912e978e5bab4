"""Layers that learn from data, and have learned nothing: they refuse data, as nothing would follow from it."""

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.learning import layers


@every_row(
    "layer, data, lacks",
    [
        (layers.Discretization(num_bins=3), np.ones(2), "bin_boundaries"),
        (layers.Normalization(), np.ones((2, 2)), "neither mean and variance nor been adapted"),
        (layers.StringLookup(), ["a"], "no vocabulary"),
        (layers.IntegerLookup(), [3], "no vocabulary"),
        (layers.TextVectorization(), ["a b"], "no vocabulary"),
    ],
)
def test_a_layer_that_has_learned_nothing_refuses_data_and_names_adapt(layer, data, lacks):
    with pytest.raises(SpecError, match=rf"{lacks}.*call adapt\(data\) first"):
        layer(data)
