"""Buffers of a server's values: the newest version is read in place while the next one is written beside it.

The rule *Whole versions* (docs/design/protocol.md#whole-versions). A version that is not read any more is
overwritten; while the newest one is not read, the next is made in place. There is one buffer more than there
are readers of different versions; over gRPC a replica reads a version as long as it is being sent.
"""

from collections.abc import Sequence

import numpy as np

from dtrain.types import Array


class BufferAllocator:
    """The memory of values: this process's own, which no other process reads."""

    def take(self, values: Sequence[Array]) -> list[Array]:
        """Return the same values in this allocator; arrays that cannot be written are copied."""
        return [value if value.flags.writeable else np.array(value) for value in values]

    def another(self, values: Sequence[Array]) -> list[Array]:
        """Return arrays of the same dtypes and sizes, uninitialised."""
        return [np.empty_like(value) for value in values]

    def lends(self, values: Sequence[Array]) -> bool:
        """Return whether values of this size may be read in place."""
        return True

    def in_use(self, values: Sequence[Array]) -> bool:
        """Return whether a reader may be reading them."""
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
        self.newest = allocator.take(values)
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
        """Make the version in these arrays the newest."""
        self.number += 1
        if values is not self.newest:
            kept = self._older if self._lost else [*self._older, self.newest]
            self._older = [each for each in kept if each is not values]
            self.newest = values
            self._lost = False
        if not self._allocator.keeps_spares:
            self._older = [each for each in self._older if self._allocator.in_use(each)]

    def lose(self, values: Sequence[Array]) -> None:
        """Drop these buffers without reuse: a reader has disconnected, and its end of reading is unknown."""
        if not values:
            return
        self._lost = self._lost or values[0] is self.newest[0]
        self._older = [each for each in self._older if values[0] is not each[0]]
