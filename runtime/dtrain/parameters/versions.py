"""Values that others read while training goes on: whole versions side by side, and copies on write.

The rule *Whole versions* (docs/design/protocol.md#whole-versions). The newest version is read in place
while the next one is written beside it. A version that is not read any more is overwritten; while the
newest one is not read, the next is made in place. There is one buffer more than there are readers of
different versions; over gRPC a replica reads a version as long as it is being sent.

The rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints). Nothing is copied when
the snapshot is made. A row of a table that is about to change is copied once, unless it has been read
already; where all rows change, as those of dense variables do, the unread ones are copied at once. Rows are
read once, array after array, first row first, and dropped once read; the block that was read last may be
read again.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array, Arrays


class BufferAllocator:
    """The memory of values: this process's own, which no other process reads."""

    def adopt(self, values: Sequence[Array]) -> list[Array]:
        """Return the same values in this allocator; arrays that cannot be written are copied."""
        return [value if value.flags.writeable else np.array(value) for value in values]

    def another(self, values: Sequence[Array]) -> list[Array]:
        return [np.empty_like(value) for value in values]

    def lends(self, values: Sequence[Array]) -> bool:
        return True

    def in_use(self, values: Sequence[Array]) -> bool:
        return False

    keeps_spares = True
    """True if buffers that are not read any more stay for a later version."""


class VersionedBuffers:
    """Versions of one server's values.

    Attributes:
        newest: `[group]`, flat arrays of the layout's dtypes and sizes; not to be written while they are
            read.
        number: how many versions have been published, the first one included.
    """

    def __init__(self, values: Sequence[Array], allocator: BufferAllocator) -> None:
        self._allocator = allocator
        self.newest = allocator.adopt(values)
        self._lends = allocator.lends(values)
        self.number = 1
        self._older: list[list[Array]] = []
        self._lost = False

    def next_place(self) -> list[Array]:
        """Return the arrays for the next version, which may be those of the newest one."""
        if not self._lost and not (self._lends and self._allocator.in_use(self.newest)):
            return self.newest
        free = (values for values in self._older if not self._allocator.in_use(values))
        return next(free, None) or self._allocator.another(self.newest)

    def publish(self, values: list[Array]) -> None:
        self.number += 1
        if values is not self.newest:
            kept = self._older if self._lost else [*self._older, self.newest]
            self._older = [each for each in kept if each is not values]
            self.newest = values
            self._lost = False
        if not self._allocator.keeps_spares:
            self._older = [each for each in self._older if self._allocator.in_use(each)]

    def disconnected(self, reading: Sequence[Array]) -> None:
        """Drop, without reuse, the buffers that a lost peer was reading: its end of reading is unknown."""
        if not reading:
            return
        self._lost = self._lost or reading[0] is self.newest[0]
        self._older = [each for each in self._older if reading[0] is not each[0]]


class _Part(msgspec.Struct):
    """One array, [rows, ...], in the snapshot.

    Attributes:
        last: the block that was read last, and its first row.
        ids, rows: numbers (int64) and former contents of rows that have changed, owned by the snapshot.
        kept: bool, one for each row: True if `rows` has it.
        whole: copies of all rows from `whole_start` on, if all have changed.
    """

    array: Array
    position: int = 0
    last: tuple[int, Array] | None = None
    ids: list[Array] = msgspec.field(default_factory=list)
    rows: list[Array] = msgspec.field(default_factory=list)
    kept: Array | None = None
    whole: Array | None = None
    whole_start: int = 0

    def save_rows(self, ids: Array) -> None:
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

    def save_rows(self, ids: Array) -> None:
        for part in self._parts.values():
            part.save_rows(ids)

    def keep_all(self) -> None:
        for part in self._parts.values():
            part.keep_all()

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows of one array as they were; earlier rows, and arrays before this one, cannot be read
        again. Rows that there are not raise an `InputError`.
        """
        part = self._parts.get(name)
        if part is None or not 0 <= start <= stop <= len(part.array):
            raise InputError(f"there is no snapshot of rows {start} to {stop} of {name or 'values'}")
        for before in self._parts.values():
            if before is part:
                break
            before.done()
        return part.read(start, stop)
