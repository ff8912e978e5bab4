"""The values that a server shows: the newest version, read where it lies while the next one is made beside
it. Rule 8.

A version that is not read any more is overwritten; while the newest one is not read, the next is made in
place. So there is one array more than there are readers of different versions; over gRPC a replica reads a
version as long as it is being sent.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Room:
    """Where values are kept: in this process's own memory, where no other process reads them."""

    def take(self, values: Sequence[Array]) -> list[Array]:
        """The same values in this room; arrays that cannot be written are copied."""
        return [value if value.flags.writeable else np.array(value) for value in values]

    def another(self, values: Sequence[Array]) -> list[Array]:
        """Arrays like these, with any content."""
        return [np.empty_like(value) for value in values]

    def lends(self, values: Sequence[Array]) -> bool:
        """Whether anybody may be shown values of this size where they lie."""
        return True

    def in_use(self, values: Sequence[Array]) -> bool:
        """Whether they may be being read."""
        return False

    keeps_spares = True
    """Whether what is not read any more stays for a later version."""


class Published:
    """Versions of one server's values.

    Attributes:
        newest: one array a group; not to be written while it is read.
        number: how many versions have been published, the first one included.
    """

    def __init__(self, values: Sequence[Array], room: Room) -> None:
        self._room = room
        self.newest = room.take(values)
        self._lends = room.lends(values)
        self.number = 1
        self._older: list[list[Array]] = []
        self._lost = False

    def next_place(self) -> list[Array]:
        """Where the next version is to be written; it may be where the newest one lies."""
        if not self._lost and not (self._lends and self._room.in_use(self.newest)):
            return self.newest
        free = (values for values in self._older if not self._room.in_use(values))
        return next(free, None) or self._room.another(self.newest)

    def publish(self, values: list[Array]) -> None:
        """The version in this place is the newest from now on."""
        self.number += 1
        if values is not self.newest:
            kept = self._older if self._lost else [*self._older, self.newest]
            self._older = [each for each in kept if each is not values]
            self.newest = values
            self._lost = False
        if not self._room.keeps_spares:
            self._older = [each for each in self._older if self._room.in_use(each)]

    def lose(self, values: Sequence[Array]) -> None:
        """Let them go, and write them no more: the process that reads them will never say that it has
        done.
        """
        if not values:
            return
        self._lost = self._lost or values[0] is self.newest[0]
        self._older = [each for each in self._older if values[0] is not each[0]]
