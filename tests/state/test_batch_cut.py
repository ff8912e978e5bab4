"""How batches are cut: TensorFlow's blocks, or as evenly as can be."""

from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.state.batch_cut import BatchCut


@given(st.integers(0, 40), st.integers(1, 9), st.booleans())
def test_the_parts_are_the_batch_in_order_and_filled_ones_come_first(size, parts, even):
    cut = BatchCut(parts, even)
    rows = [cut.rows(part, size) for part in range(parts)]
    assert [row for part in rows for row in part] == list(range(size))
    lengths = [len(part) for part in rows]
    assert [length > 0 for length in lengths] == [part < cut.filled(size) for part in range(parts)]
    if even:
        assert max(lengths) - min(lengths) <= 1


@every_row(
    "size, parts, even, lengths",
    [
        (4, 3, False, [2, 2, 0]),
        (2, 2, False, [1, 1]),
        (7, 3, False, [3, 3, 1]),
        (4, 3, True, [2, 1, 1]),
        (2, 3, True, [1, 1, 0]),
    ],
)
def test_as_tensorflow_cuts(size, parts, even, lengths):
    """Golden README, point 1: blocks of ceil(b / N) under AUTO and DATA."""
    assert [len(BatchCut(parts, even).rows(part, size)) for part in range(parts)] == lengths
