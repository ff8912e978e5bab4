"""The rows of one sparse variable on one server, with their slots: read, loaded and updated row by row."""

from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import Optimizer
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
            before use. Each has the shard's shape; the table owns them.
        drawn: the source from which `load` draws rows of an array where none are given.
    """

    def __init__(self, shard: Shard, optimizer: Optimizer) -> None:
        self.shard = shard
        slots = optimizer.initial_slots(np.zeros(0, shard.dtype)) if shard.trainable else ()
        self.arrays = {name: np.empty(shard.shape, shard.dtype) for name in (VALUES, *slots)}
        self.drawn: dict[str, DrawnTable] = {}
        self.snapshot: CopyOnWriteSnapshot | None = None
        self.optimizer = optimizer

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
        elif (block.dtype, block.size) != (target.dtype, (stop - start) * self._row_size):
            raise InputError(
                f"{self.shard.name}: {block.size} elements of {block.dtype} are not rows {start} to {stop}"
            )
        else:
            target[start:stop] = block.reshape(stop - start, *target.shape[1:])

    def assign(self, rows: Array) -> None:
        if self.snapshot is not None:
            self.snapshot.keep_all()
        self.values[...] = rows.reshape(self.values.shape)

    def look_up(self, ids: Array) -> Array:
        """Return a flat copy of these rows; raise an `InputError` unless ids ascend and exist."""
        if reason := self._id_mismatch(ids):
            raise InputError(reason)
        rows: Array = self.values[ids].reshape(-1)
        return rows

    def mismatch(self, ids: Array, rows: Array) -> str | None:
        if rows.dtype != self.values.dtype or rows.size != ids.size * self._row_size:
            expected = f"{self.values.dtype} rows of {self._row_size} elements"
            return f"{self.shard.name}: {rows.size} elements of {rows.dtype} for {ids.size} {expected}"
        return self._id_mismatch(ids)

    def gradient(self, ids: Array, rows: Array) -> SparseRows:
        return SparseRows(ids, rows.reshape(len(ids), *self.shard.shape[1:]))

    def update(self, gradient: SparseRows, step: int, rate_scale: float) -> None:
        """Apply one update of the optimizer in place; ids ascend and occur once."""
        if self.snapshot is not None:
            if self.optimizer.touches_listed_rows_only:
                self.snapshot.save_rows(gradient.ids)
            else:
                self.snapshot.keep_all()
        self.optimizer.update_rows(
            self.values, gradient.ids, gradient.rows, self.slots, step, rate_scale=rate_scale
        )

    def finalize(self) -> None:
        if self.optimizer.use_ema and self.snapshot is not None:
            self.snapshot.keep_all()
        self.optimizer.finalize(self.values, self.slots)

    def mark(self) -> CopyOnWriteSnapshot:
        self.snapshot = CopyOnWriteSnapshot(self.arrays)
        return self.snapshot

    @property
    def _row_size(self) -> int:
        return int(np.prod(self.shard.shape[1:], dtype=np.int64))

    def _id_mismatch(self, ids: Array) -> str | None:
        rows = len(self.values)
        if ids.dtype != np.int64 or (
            ids.size and not (ids[0] >= 0 and ids[-1] < rows and bool((ids[1:] > ids[:-1]).all()))
        ):
            return f"{self.shard.name}: expected ascending row numbers from 0 to {rows - 1}, each once"
        return None
