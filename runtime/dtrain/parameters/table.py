"""The rows of one sparse variable on one server, with their slots: read, loaded and kept row by row."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.parameters.placement import Shard
from dtrain.parameters.versions import CopyOnWriteSnapshot
from dtrain.types import Array
from dtrain.variables.lazy_table import row_blocks

VALUES = ""
"""The name of the rows themselves among a table's arrays; the others are slots."""


class Table:
    """Rows `shard.row_start` to `shard.row_stop` of a variable, numbered from the shard's first row.

    Attributes:
        arrays: the rows under `VALUES`, and of a trainable table each slot under its name; to be filled
            before use, unless they are given. Each has the shard's shape; the table owns them.
        drawn: the source from which `load` draws rows of an array where none are given.
    """

    def __init__(self, shard: Shard, slots: Iterable[str], arrays: dict[str, Array] | None = None) -> None:
        """Begin; `slots` are the names of those that a trainable variable has."""
        self.shard = shard
        names = (VALUES, *slots) if shard.trainable else (VALUES,)
        self.arrays = arrays or {name: np.empty(shard.shape, shard.dtype) for name in names}
        self.drawn: dict[str, DrawnTable] = {}
        self.snapshot: CopyOnWriteSnapshot | None = None

    @property
    def values(self) -> Array:
        return self.arrays[VALUES]

    @property
    def slots(self) -> dict[str, Array]:
        return {name: array for name, array in self.arrays.items() if name != VALUES}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def fill(self, name: str, source: Any) -> None:
        first = self.shard.row_start
        target = self.arrays[name]
        for start, stop in row_blocks(target.shape, target.itemsize):
            target[start:stop] = source[first + start : first + stop]

    def load(self, name: str, start: int, stop: int, block: Array | None = None) -> None:
        """Set neighbouring rows to a flat block's or to initial values, or raise an `InputError`."""
        target = self.arrays.get(name)
        first = self.shard.row_start
        if (
            target is None
            or not 0 <= start <= stop <= len(target)
            or (block is None and name not in self.drawn)
        ):
            raise InputError(f"{self.shard.name}: there are no rows {start} to {stop} of {name or 'values'}")
        if block is None:
            target[start:stop] = self.drawn[name][first + start : first + stop]
        elif (block.dtype, block.size) != (target.dtype, (stop - start) * self.shard.width):
            raise InputError(
                f"{self.shard.name}: {block.size} elements of {block.dtype} are not rows {start} to {stop}"
            )
        else:
            target[start:stop] = block.reshape(stop - start, *target.shape[1:])

    def assign(self, rows: Array) -> None:
        self.keep(None)
        self.values[...] = rows.reshape(self.values.shape)

    def look_up(self, ids: Array) -> Array:
        """Return a flat copy of these rows; raise an `InputError` unless ids ascend and exist."""
        if reason := self._id_mismatch(ids):
            raise InputError(reason)
        rows: Array = self.values[ids].reshape(-1)
        return rows

    def mismatch(self, ids: Array, rows: Array) -> str | None:
        if rows.dtype != self.values.dtype or rows.size != ids.size * self.shard.width:
            expected = f"{self.values.dtype} rows of {self.shard.width} elements"
            return f"{self.shard.name}: {rows.size} elements of {rows.dtype} for {ids.size} {expected}"
        return self._id_mismatch(ids)

    def keep(self, ids: Array | None) -> None:
        """Let a snapshot have these rows as they are, before they change; None: all rows."""
        if self.snapshot is not None:
            self.snapshot.keep_all() if ids is None else self.snapshot.save_rows(ids)

    def mark(self) -> CopyOnWriteSnapshot:
        self.snapshot = CopyOnWriteSnapshot(self.arrays)
        return self.snapshot

    def _id_mismatch(self, ids: Array) -> str | None:
        rows = len(self.values)
        if ids.dtype != np.int64 or not are_rows(ids, rows):
            return f"{self.shard.name}: expected ascending row numbers from 0 to {rows - 1}, each once"
        return None


def are_rows(ids: Array, rows: int, after: int = -1) -> bool:
    """Return whether ids ascend strictly and are rows of a table of so many."""
    return not ids.size or bool(ids[0] > after and ids[-1] < rows and np.all(ids[1:] > ids[:-1]))
