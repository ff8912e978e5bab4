"""The update of one table of which gradients list rows: the numbers are those of `Store.apply`.

Where the optimizer's rule leaves rows alone that are not listed, the blocks of an update are pieces of the
list of all rows that any gradient lists, so that a step costs what its batch does. Where the rule moves every
row (momentum, Adam, ...), they are pieces of the table, and rows that are not listed have a gradient of zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtrain.collectives.slices import Block, Piece
from dtrain.learning.core import clipping
from dtrain.learning.core.clipping import PIECE_ELEMENTS, squared_norm_of_piece
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import Optimizer
from dtrain.parameters.means import row_mean
from dtrain.types import Array

GivenRows = tuple[Array, Array]
"""The rows of one gradient: ids (int64, ascending, each once) and the rows, flat."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows number `first` to `last` of those that the gradients of a step list."""

    group: int
    first: int
    last: int


AnyBlock = Block | RowBlock


class RowUpdate:
    """One table in the updates of a store.

    Attributes:
        ids: the rows that any gradient of the step lists, ascending.
    """

    def __init__(self, group: int, slots: Sequence[str], arrays: Sequence[Array], width: int) -> None:
        """Remember the table.

        Args:
            group: what its blocks call it.
            slots: their names.
            arrays: the values, then each slot, flat.
            width: of a row, in elements.
        """
        self._group = group
        self._slots = slots
        self._arrays = [array.reshape(-1, width) for array in arrays]
        self._width = width
        self.begin((), 0, None)

    def begin(self, given: Sequence[GivenRows], count: int, weights: Sequence[int] | None) -> None:
        """Take the rows of the gradients that make a version; arguments as of `Contributions`."""
        self._given = [(ids, rows.reshape(len(ids), self._width)) for ids, rows in given]
        self._count = count
        self._weights = weights
        listed = [ids for ids, _ in given]
        self.ids = np.unique(np.concatenate(listed)) if listed else np.empty(0, np.int64)

    # The cut

    def blocks(self, elements: int, *, listed_only: bool) -> list[AnyBlock]:
        """Return the blocks of an update that moves the listed rows only, or every row."""
        at_a_time = max(1, elements // self._width)
        rows = len(self.ids) if listed_only else len(self._arrays[0])
        cuts = [(first, min(first + at_a_time, rows)) for first in range(0, rows, at_a_time)]
        if listed_only:
            return [RowBlock(self._group, first, last) for first, last in cuts]
        width = self._width
        return [Block(self._group, first * width, last * width) for first, last in cuts]

    def pieces(self, number: int) -> list[Piece]:
        """Return the pieces of the listed rows' mean, which count from `number`."""
        size = self.ids.size * self._width
        return [
            Piece(self._group, start, min(start + PIECE_ELEMENTS, size), number + place)
            for place, start in enumerate(range(0, size, PIECE_ELEMENTS))
        ]

    # The mean

    def mean(self, first: int, last: int) -> SparseRows:
        """Return the mean gradient of the rows number `first` to `last` of those listed."""
        ids = self.ids[first:last]
        if not ids.size:
            return SparseRows(ids, np.empty((0, self._width), self._arrays[0].dtype))
        pairs = []
        for listed, rows in self._given:
            start, stop = np.searchsorted(listed, (ids[0], ids[-1] + 1)).tolist()
            pairs.append((listed[start:stop], rows[start:stop]))
        if self._count == 1:
            return SparseRows(*pairs[0])
        _, rows = row_mean(pairs, self._count, self._weights, ids)
        return SparseRows(ids, rows.reshape(-1, self._width))

    def square(self, piece: Piece) -> float:
        """Return the sum of squares of a piece of the mean of the listed rows."""
        first, last = piece.start // self._width, -(-piece.stop // self._width)
        skipped = first * self._width
        flat = np.ascontiguousarray(self.mean(first, last).rows).reshape(-1)
        return squared_norm_of_piece(flat[piece.start - skipped : piece.stop - skipped])

    # What is done with a block

    def copy(self, block: RowBlock, places: Sequence[Array]) -> None:
        """Copy rows and slots to `places`, flat."""
        ids = self.ids[block.first : block.last]
        for place, array in zip(places, self._arrays, strict=True):
            np.take(array, ids, axis=0, out=self._rows_of(place, ids))

    def put_back(self, block: RowBlock, places: Sequence[Array]) -> None:
        """Copy rows and slots back."""
        ids = self.ids[block.first : block.last]
        for place, array in zip(places, self._arrays, strict=True):
            array[ids] = self._rows_of(place, ids)

    def _rows_of(self, place: Array, ids: Array) -> Array:
        return place[: ids.size * self._width].reshape(-1, self._width)

    def update(self, block: AnyBlock, optimizer: Optimizer, factor: float, step: int) -> None:
        """Make the next version of a block.

        Args:
            block: of this table.
            optimizer: the rule.
            factor: by which its limits of norms multiply the gradient.
            step: as of `Optimizer.update_rows`.
        """
        if isinstance(block, RowBlock):
            first, last, start, arrays = block.first, block.last, 0, self._arrays
        else:
            start, stop = block.start // self._width, block.stop // self._width
            first, last = np.searchsorted(self.ids, (start, stop)).tolist()
            arrays = [array[start:stop] for array in self._arrays]
        gradient: clipping.Gradient = clipping.scaled(self.mean(first, last), factor)
        if optimizer.clipvalue is not None:
            gradient = clipping.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue)
        assert isinstance(gradient, SparseRows), "a gradient keeps its kind"
        value, *slots = arrays
        named = dict(zip(self._slots, slots, strict=True))
        optimizer.update_rows(value, gradient.ids - start, gradient.rows, named, step)
