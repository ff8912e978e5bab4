"""A table whose rows are fetched when they are read: from parameter servers, or drawn for the first time.

table[7]                one row
table[ids]              rows by numbers, an array of any shape; repeated ones are fetched once
table[100:200]          a range of rows
np.asarray(table)       all rows: this takes the memory of the whole table
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array

BLOCK_BYTES = 4 << 20
"""Bytes of a table that are handled at a time where all of it is read."""


class LazyTable:
    """A read-only array of rows: its whole `shape`, whose first axis counts the rows, and `dtype`."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, rows: Callable[[Array], Array]) -> None:
        """Describe a table; `rows` returns the rows of ascending row numbers (int64) without duplicates."""
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._rows = rows

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        first, *others = key if isinstance(key, tuple) and key else (key,)
        if isinstance(first, slice):
            start, stop, step = first.indices(len(self))
            rows = (
                self._rows(np.arange(start, stop))
                if step == 1 and start < stop
                else self._gather(np.arange(start, stop, step))
            )
            return rows[(slice(None), *others)]
        ids = np.asarray(first)
        if ids.dtype == bool:
            raise InputError(
                "the rows of this table are chosen by number, found a mask; use np.flatnonzero(mask)"
            )
        return self._gather(ids)[(slice(None),) * ids.ndim + tuple(others)]

    def _gather(self, ids: Array) -> Array:
        if ids.size and (ids.dtype.kind not in "iu" or ids.min() < -len(self) or ids.max() >= len(self)):
            raise IndexError(f"rows {ids.min()} to {ids.max()} of a table with {len(self)} rows")
        if not ids.size:
            return np.empty((*ids.shape, *self.shape[1:]), self.dtype)
        distinct, inverse = np.unique(ids.astype(np.int64) % len(self), return_inverse=True)
        return self._rows(distinct)[inverse.reshape(-1)].reshape(*ids.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for start, stop in row_blocks(self.shape, self.dtype.itemsize):
            whole[start:stop] = self[start:stop]
        return whole


def row_blocks(shape: tuple[int, ...], itemsize: int, nbytes: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield the rows of a table as (start, stop), each block of about `nbytes`."""
    row_bytes = max(1, int(np.prod(shape[1:], dtype=np.int64)) * itemsize)
    step = max(1, nbytes // row_bytes)
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])
