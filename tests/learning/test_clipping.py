"""Clipping keeps its promise for any gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.learning.core import clipping
from dtrain.learning.core.sparse_rows import SparseRows

GRADIENTS = st.lists(
    st.none() | st.lists(st.floats(-1e4, 1e4, width=32), max_size=5).map(lambda v: np.array(v, "float32")),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(GRADIENTS, st.floats(0.125, 100, width=32))
def test_no_norm_is_above_the_limit_and_directions_stay(gradients, limit):
    clipped, norm = clipping.clip_by_global_norm(gradients, limit)
    assert clipping.global_norm(clipped) <= limit * (1 + 1e-5)
    for before, after in zip(gradients, clipped, strict=True):
        if before is None:
            assert after is None
        elif norm <= limit:
            assert after is before
        else:
            np.testing.assert_allclose(after, before * np.float32(limit / norm), rtol=1e-5)
            assert after.dtype == np.float32
            assert np.sqrt(clipping.squared_norm(clipping.clip_by_norm(before, limit))) <= limit * (1 + 1e-5)


def test_sparse_gradients_stay_sparse():
    gradient = SparseRows(np.array([4, 1]), np.full((2, 2), 3.0, "float32"))
    for clipped in (clipping.clip_by_norm(gradient, 1.0), clipping.clip_by_value(gradient, -1.0, 1.0)):
        assert clipped.ids is gradient.ids
        assert clipped.rows.max() <= 1
    assert clipping.squared_norm(gradient) == pytest.approx(36)
