"""Arrays as they were at one moment, read while training goes on: copy on write.

Rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints). Nothing is copied when the
snapshot is made. A row of a table that is about to change is copied once, unless it has been read already;
where all rows change, as those of dense variables do, the unread ones are copied at once. Rows are read once,
array after array, first row first, and dropped once read; the block that was read last may be read again.
"""

from dataclasses import dataclass, field

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array, Arrays


@dataclass
class _Part:
    """One array, [rows, ...], in the snapshot.

    Attributes:
        position: rows before it have been read.
        last: the block that was read last, and its first row.
        ids, rows: numbers (int64) and former contents of rows that have changed, owned by the snapshot.
        kept: bool, one for each row: True if `rows` has it.
        whole: copies of all rows from `whole_start` on, if all have changed.
    """

    array: Array
    position: int = 0
    last: tuple[int, Array] | None = None
    ids: list[Array] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    kept: Array | None = None
    whole: Array | None = None
    whole_start: int = 0

    def keep(self, ids: Array) -> None:
        if self.whole is not None or self.position >= len(self.array):
            return
        if self.kept is None:
            self.kept = np.zeros(len(self.array), bool)
        new = ids[(ids >= self.position) & ~self.kept[ids]]
        self.kept[new] = True
        self.ids.append(new)
        self.rows.append(self.array[new])

    def keep_all(self) -> None:
        if self.whole is None and self.position < len(self.array):
            self.whole = self._block(self.position, len(self.array))
            self.whole_start = self.position
            self._forget()

    def read(self, start: int, stop: int) -> Array:
        if self.last is None or (self.last[0], len(self.last[1])) != (start, stop - start):
            self.last = (start, self._block(start, stop))
            self.position = stop
            if stop == len(self.array):
                self.whole = None
                self._forget()
        return self.last[1]

    def _block(self, start: int, stop: int) -> Array:
        if self.whole is not None:
            return self.whole[start - self.whole_start : stop - self.whole_start].copy()
        block = self.array[start:stop].copy()
        if self.ids:
            ids = np.concatenate(self.ids)
            rows = np.concatenate(self.rows)
            ahead = ids >= start
            self.ids = [ids[ahead]]
            self.rows = [rows[ahead]]
            here = self.ids[0] < stop
            block[self.ids[0][here] - start] = self.rows[0][here]
        return block

    def done(self) -> None:
        self.position = len(self.array)
        self.last = None
        self.whole = None
        self._forget()

    def _forget(self) -> None:
        self.ids = []
        self.rows = []
        self.kept = None


class CopyOnWriteSnapshot:
    """Arrays of equally many rows each, as they were when this was made."""

    def __init__(self, arrays: Arrays) -> None:
        self._parts = {name: _Part(array) for name, array in arrays.items()}

    def keep(self, ids: Array) -> None:
        """Copy these rows, each listed once, before they change."""
        for part in self._parts.values():
            part.keep(ids)

    def keep_all(self) -> None:
        """Copy every row before it changes."""
        for part in self._parts.values():
            part.keep_all()

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows of one array as they were.

        Earlier rows, and the arrays before this one, cannot be read again.

        Raises:
            InputError: there is no such array, or it has no such rows.
        """
        part = self._parts.get(name)
        if part is None or not 0 <= start <= stop <= len(part.array):
            raise InputError(f"there is no snapshot of rows {start} to {stop} of {name or 'values'}")
        for before in self._parts.values():
            if before is part:
                break
            before.done()
        return part.read(start, stop)
