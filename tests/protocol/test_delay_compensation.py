"""Delay compensation against its formula."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.protocol.async_updates import BLOCK, DelayCompensation


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from((1, 7, BLOCK, BLOCK + 3)),
    st.sampled_from(("float32", "float64")),
    st.integers(0, 2**32 - 1),
)
def test_a_gradient_is_corrected_by_its_square_times_the_way_the_weights_have_gone(size, dtype, seed):
    rng = np.random.default_rng(seed)
    then, now, gradient = (rng.standard_normal(size).astype(dtype) for _ in range(3))
    table, new_table = np.arange(3), np.arange(3) + 1
    rule = DelayCompensation(0.04, trainable=(0,))
    rule.remember(2, 5, (then, table))
    original = gradient.copy()
    corrected, passed = rule.compensate(2, 5, (gradient, new_table), (now, table))
    expected = gradient + 0.04 * gradient * gradient * (now - then)
    np.testing.assert_allclose(corrected, expected, rtol=1e-5, atol=1e-6)
    assert corrected.dtype == gradient.dtype
    assert passed is new_table
    assert np.array_equal(gradient, original)


def test_the_weights_are_kept_as_they_were_sent():
    rule = DelayCompensation(1.0, trainable=(0,))
    values = np.zeros(2)
    rule.remember(0, 0, (values,))
    values += 1
    rule.remember(1, 1, (values,))
    values += 1
    [first] = rule.compensate(0, 0, (np.ones(2),), (values,))
    [second] = rule.compensate(1, 1, (np.ones(2),), (values,))
    assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [2.0, 2.0])


def test_a_gradient_from_weights_that_are_not_remembered_stays_as_it_is():
    rule = DelayCompensation(1.0, trainable=(0,))
    gradient = (np.ones(2),)
    assert rule.compensate(0, 0, gradient, (np.ones(2),)) is gradient
    rule.remember(0, 1, (np.zeros(2),))
    assert rule.compensate(0, 0, gradient, (np.ones(2),)) is gradient


def test_rows_of_a_table_are_corrected_from_where_they_were_read_and_others_stay():
    rule = DelayCompensation(0.5, trainable=(0,))
    table, bias = np.zeros((4, 2), np.float32), np.zeros(2)
    rule.remember(3, 0, (bias,))
    rule.remember_rows(3, 8, np.array([0, 2]), table)
    table[...] = [[1, 1], [2, 2], [3, 3], [4, 4]]
    ids, rows = np.array([0, 1, 2]), np.array([1, 1, 1, 1, 2, 2], np.float32)
    blocks = rule.compensate(3, 0, [np.ones(2), ids, rows], (bias,), {8: table})
    assert blocks[1] is ids
    assert blocks[2].tolist() == [1.5, 1.5, 1, 1, 8, 8]  # g + 0.5 * g * g * (now - then)
    assert rows.tolist() == [1, 1, 1, 1, 2, 2]
    unread = rule.compensate(3, 0, [np.ones(2), ids, rows], (bias,), {9: table})
    assert unread[2] is rows
