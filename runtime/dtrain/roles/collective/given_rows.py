"""The rows of tables that the gradients of parts list: a count, ids and rows, for each part and table.

There is room for every row of a table, of which pages are taken only as rows are written: what a batch
touches decides how much memory it costs. The rule is that of the rest of a gradient: its part's owner or heir
writes it before the word `ready`, and nobody changes it before the round is over.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from dtrain.collectives.tables import TableInGroup
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.types import Array

_PAGE_BYTES = 4096
_ID_BYTES = 8


def nbytes_of(tables: Sequence[TableInGroup], parts: int) -> int:
    """Return the size of the room for so many parts, of which one page is taken at least."""
    return max(_PAGE_BYTES, parts * sum(sum(_sizes(table)) for table in tables))


def _sizes(table: TableInGroup) -> tuple[int, int]:
    """Return the bytes of the count and ids, and those of the rows, in whole pages."""
    ids = (1 + table.rows) * _ID_BYTES
    rows = table.rows * table.width * np.dtype(table.dtype).itemsize
    return ids + -ids % _PAGE_BYTES, rows + -rows % _PAGE_BYTES


class GivenRows:
    """The room, as one process uses it."""

    def __init__(
        self, tables: Sequence[TableInGroup], parts: int, memory: Array, need: Callable[[int, int], None]
    ) -> None:
        """Lay out memory.

        Args:
            tables: the trainable ones.
            parts: of a step.
            memory: bytes, `nbytes_of` these.
            need: takes the pages of bytes from here to there, before they are written.
        """
        self._tables = tables
        self._need = need
        sizes = [size for _ in range(parts) for table in tables for size in _sizes(table)]
        self._starts = list(accumulate(sizes, initial=0))
        arrays = [memory[start : start + size] for start, size in zip(self._starts, sizes, strict=False)]
        self._ids = [array.view(np.int64) for array in arrays[::2]]
        dtypes = [table.dtype for _ in range(parts) for table in tables]
        self._rows = [array.view(dtype) for array, dtype in zip(arrays[1::2], dtypes, strict=True)]

    def put(self, part: int, rows: Mapping[str, SparseRows]) -> None:
        """Write the rows of a part's gradient; a table that has none lists none.

        Raises:
            SharedMemoryError: the machine has not that much memory.
        """
        for number, table in enumerate(self._tables, part * len(self._tables)):
            given = rows.get(table.name)
            count = 0 if given is None else len(given.ids)
            ids, places = self._ids[number], self._rows[number]
            first, second = self._starts[2 * number], self._starts[2 * number + 1]
            self._need(first, first + (1 + count) * _ID_BYTES)
            if given is not None and count:
                self._need(second, second + count * table.width * places.itemsize)
                ids[1 : 1 + count] = given.ids
                places[: count * table.width].reshape(count, table.width)[...] = given.rows.reshape(count, -1)
            ids[0] = count

    def blocks(self, part: int) -> list[Array]:
        """Return ids and rows (flat) of each table, as `RowRoutes.blocks` does."""
        blocks: list[Array] = []
        for number, table in enumerate(self._tables, part * len(self._tables)):
            ids = self._ids[number]
            count = int(ids[0])
            blocks += [ids[1 : 1 + count], self._rows[number][: count * table.width]]
        return blocks
