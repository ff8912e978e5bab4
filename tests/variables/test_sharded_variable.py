"""A sharded variable behaves as the concatenation of its shards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import InputError
from dtrain.variables.partitioning import split_rows
from dtrain.variables.sharded_variable import ShardedVariable


@st.composite
def variables(draw, div=False):
    if div:
        rows = draw(st.integers(1, 12))
        sizes = split_rows(rows, draw(st.integers(1, rows)))
    else:
        sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    whole = np.arange(sum(sizes) * 2.0).reshape(-1, 2)
    return ShardedVariable([part.copy() for part in np.split(whole, np.cumsum(sizes)[:-1])]), whole


BOUNDS = st.none() | st.integers(-15, 15)


@settings(deadline=None, max_examples=300)
@given(variables(), st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-4, 4).filter(bool)))
def test_slices(pair, rows):
    variable, whole = pair
    np.testing.assert_array_equal(variable[rows], whole[rows])
    np.testing.assert_array_equal(variable[rows, 1:], whole[rows, 1:])
    np.testing.assert_array_equal(variable[rows, 0], whole[rows, 0])


@settings(deadline=None, max_examples=100)
@given(variables(), st.integers(-15, 15))
def test_integers(pair, row):
    variable, whole = pair
    if -len(whole) <= row < len(whole):
        np.testing.assert_array_equal(variable[row], whole[row])
        assert variable[row, 1] == whole[row, 1]
    else:
        with pytest.raises(IndexError):
            variable[row]


@every_row("key", [..., None, [0, 2], np.array([True, False, True]), (..., 1), True])
def test_any_other_key_reads_the_whole(key):
    variable = ShardedVariable([np.arange(4.0).reshape(2, 2), np.arange(2.0).reshape(1, 2)])
    np.testing.assert_array_equal(variable[key], variable.numpy()[key])


@settings(deadline=None, max_examples=100)
@given(variables(div=True), st.data())
def test_gather_and_scatter(pair, data):
    variable, whole = pair
    ids = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    values = np.arange(len(ids) * 2.0).reshape(-1, 2) - 3
    np.testing.assert_array_equal(variable.gather(ids), whole[ids])
    variable.scatter_add(ids, values)
    np.add.at(whole, ids, values)
    np.testing.assert_array_equal(variable.numpy(), whole)


@pytest.mark.parametrize("ids", [[-1], [3]])
def test_ids_outside_of_the_variable_are_refused(ids):
    variable = ShardedVariable([np.zeros(2), np.zeros(1)])
    with pytest.raises(InputError, match="from 0 to 2"):
        variable.gather(ids)
