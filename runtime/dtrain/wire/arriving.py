"""The state of a message that is still arriving."""

import queue
from collections.abc import Sequence
from itertools import accumulate

from dtrain.wire.answers import next_of


class Arriving:
    """The payload of one message: one thread says how far it has come, another waits for the part that it
    needs.
    """

    def __init__(self, block_bytes: Sequence[int]) -> None:
        """Nothing is there yet; `block_bytes` is what each block takes, padding included."""
        self._starts = list(accumulate(block_bytes, initial=0))
        self._there = 0
        self._news: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def reached(self, nbytes: int) -> None:
        """Take note that so many bytes of the whole have been written to their place."""
        self._news.put(nbytes)

    def broken(self, error: Exception) -> None:
        """Take note that nothing more will come."""
        self._news.put(error)

    def wait(self, block: int | None = None, nbytes: int = 0) -> None:
        """Wait until this much of a block is there; without a block, until all is.

        Raises:
            PeerLostError: the connection is gone, or was aborted.
        """
        needed = self._starts[-1] if block is None else self._starts[block] + nbytes
        while self._there < needed:
            news = next_of(self._news)
            if isinstance(news, Exception):
                self._news.put(news)  # the next call hears it again
                raise news
            self._there = news
