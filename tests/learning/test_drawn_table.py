"""First values of a table: the same whichever task draws the rows: name and numbers decide."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.errors import InputError, SpecError
from dtrain.learning.core import initializers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers import Embedding
from dtrain.variables.lazy_table import LazyTable, row_blocks

INITIALIZERS = [
    "zeros",
    "uniform",
    "random_normal",
    "truncated_normal",
    "glorot_uniform",
    "he_normal",
    initializers.Constant(0.1),
]


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_rows_are_those_of_the_whole(initializer, data):
    rows = data.draw(st.integers(1, 1000))
    table = DrawnTable.of((rows, 3), initializers.get(initializer), [7, 1])
    whole = np.asarray(table)
    again = DrawnTable.described(json.loads(json.dumps(table.describe())), (rows, 3))
    ids = np.array(data.draw(st.lists(st.integers(-rows, rows - 1), max_size=20)), int)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    assert np.array_equal(again[ids], whole[ids])
    assert np.array_equal(again[start:stop], whole[start:stop])
    assert np.array_equal(again[start:stop:2, 1], whole[start:stop:2, 1])
    assert np.array_equal(again[ids.reshape(-1, 1), 2:], whole[ids.reshape(-1, 1), 2:])
    assert whole.dtype == np.float32


def test_other_seeds_and_names_draw_other_rows_with_the_fans_of_the_whole():
    first, second = (
        np.asarray(DrawnTable.of((5000, 16), initializers.get("glorot_uniform"), [0, name]))
        for name in (1, 2)
    )
    assert not np.array_equal(first, second)
    limit = np.sqrt(6 / 5016)
    assert 0.99 * limit < abs(first).max() <= limit
    own = initializers.RandomNormal(seed=3)
    assert np.array_equal(*(np.asarray(DrawnTable.of((9, 2), own, [0, name])) for name in (1, 2)))


class Mine(initializers.RandomNormal):
    def draw(self, shape, rng):
        return super().draw(shape, rng) + 1


@pytest.mark.parametrize(
    "initializer",
    [initializers.Identity(), initializers.Orthogonal(), initializers.Constant([1.0, 2]), Mine()],
)
def test_what_needs_the_whole_or_has_no_name_is_not_drawn_by_rows(initializer):
    assert DrawnTable.of((2, 2), initializer, [0]) is None


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"initializer": "os.system", "seed": [0]},
        {"initializer": {"class_name": "Identity", "config": {}}, "seed": [0]},
    ],
)
def test_a_description_of_no_table_is_refused(description):
    with pytest.raises(SpecError):
        DrawnTable.described(description, (2, 2))


def test_a_small_table_of_a_model_is_drawn_like_the_same_rows_of_a_large_one():
    def first_rows(rows):
        return Network([Embedding(rows, 4, name="e", input_shape=(1,))]).initial_values(5)["e/embeddings"]

    small, large = first_rows(1000), first_rows(200_000)
    assert isinstance(small, np.ndarray)
    assert isinstance(large, DrawnTable)
    assert np.array_equal(small, large[:1000])


def test_rows_that_are_not_there_are_an_index_error_and_masks_are_refused():
    table = LazyTable((4, 1), "float32", lambda ids: ids[:, None].astype(np.float32))
    assert table[-1].tolist() == [3]
    assert table[[[1, 1], [0, -4]]][..., 0].tolist() == [[1, 1], [0, 0]]
    assert table[np.array([], int)].shape == (0, 1)
    assert len(table) == 4
    assert np.asarray(table, np.float64).tolist() == [[0], [1], [2], [3]]
    for key in (4, [-5, 0]):
        with pytest.raises(IndexError):
            table[key]
    with pytest.raises(InputError, match="mask"):
        table[np.ones(4, bool)]


def test_blocks_cover_every_row_once():
    assert list(row_blocks((10, 3), 4, 36)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert list(row_blocks((2, 1000), 4, 36)) == [(0, 1), (1, 2)]
