"""The first block of a message that comes before the message does: its last elements first, then those before
them.

So a gradient leaves while it is still being computed, from the last layer to the first. It is lost with its
connection.
"""

from collections.abc import Sequence

import numpy as np

from dtrain.errors import PeerRefusedError
from dtrain.messages import Message
from dtrain.types import Array


class Ahead(Message, frozen=True, gc=False, kw_only=True):
    """Comes with elements of a block that will have `size`, from `start` on: the last ones, or those before
    what has come.
    """

    start: int
    size: int


class BlockAhead:
    """As far as it has come: from some element to its end."""

    def __init__(self) -> None:
        self._block: Array = np.empty(0)
        self._start = -1

    def place(self, ahead: Ahead, dtype: str, count: int) -> Array:
        """Where the next elements belong; the last ones of a block begin a new one.

        Raises:
            PeerRefusedError: they do not go before those that are there.
        """
        stop = ahead.start + count
        if ahead.start >= 0 and stop == ahead.size:
            self._block = np.empty(ahead.size, dtype)
            self._start = stop
        if ahead.start < 0 or (dtype, ahead.size, stop) != (
            self._block.dtype.name,
            self._block.size,
            self._start,
        ):
            raise PeerRefusedError(
                f"elements {ahead.start} to {stop} ahead of a message, where those before {self._start} are "
                "expected"
            )
        self._start = ahead.start
        return self._block[ahead.start : stop]

    def take(self, announced: Sequence[tuple[str, int]]) -> Array:
        """Return the whole block, for a message that brings the beginning of its first block.

        Raises:
            PeerRefusedError: the beginning and the elements that came ahead do not make up a block.
        """
        block = self._block
        start = self._start
        if start < 0 or list(announced[:1]) != [(block.dtype.name, start)]:
            raise PeerRefusedError(
                f"a message that begins with {announced[:1]}, where {start} elements are expected"
            )
        self._block = np.empty(0)
        self._start = -1
        return block
