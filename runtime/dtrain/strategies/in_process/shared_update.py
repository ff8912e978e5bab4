"""The update of the variables by all replicas of a process that wait for it: each takes the next block.

Which thread updates a block is chance; the numbers are not: the grid of blocks is always the same, and a
block is computed as by `means.mean` and `Store.apply`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.collectives.block_update import BlockUpdate, Contributions, pieces_in
from dtrain.collectives.row_update import AnyBlock
from dtrain.collectives.slices import BLOCK_ELEMENTS
from dtrain.parameters.store import Store

SHARED_ELEMENTS = 4 * BLOCK_ELEMENTS
"""A smaller model is updated by one thread before the others are awake."""

Work = Callable[[BlockUpdate, Any], None]


class SharedUpdate:
    """The threads' memory for updates of one store, and the blocks that are still to be done.

    Attributes:
        running: whether a version is being made; guarded by `changed`, like all that follows.
    """

    def __init__(self, store: Store, changed: threading.Condition, threads: int, *, by_one: bool) -> None:
        """Make room.

        Args:
            store: of dense variables alone.
            changed: held by whoever calls a method; told when threads may help, and when they have.
            threads: of replicas.
            by_one: whether one thread makes every update.
        """
        self.running = False
        self._store = store
        self._changed = changed
        squares = np.zeros(pieces_in(store.groups))
        self._memory = [BlockUpdate(store, [], squares, BLOCK_ELEMENTS) for _ in range(threads)]
        size = sum(group.size for group in store.groups)
        self._shares = threads > 1 and not by_one and size >= SHARED_ELEMENTS
        self._work: tuple[Work, Iterator[Any]] | None = None
        self._helping = 0

    def make(self, rank: int, contributions: Contributions) -> None:
        """Make the next version, in the thread of a replica; others may help meanwhile."""
        self._store.keep_snapshots()
        limited = not self._store.optimizer.elementwise
        for memory in self._memory:
            memory.contributions = contributions
        if limited:
            self._do(rank, BlockUpdate.square, self._memory[rank].pieces)
        for memory in self._memory:
            memory.limit(limited=limited)
        self._do(rank, BlockUpdate.update, self._memory[rank].blocks)

    def _do(self, rank: int, do: Work, blocks: Sequence[AnyBlock]) -> None:
        """Do something to every block; return when it is done."""
        left = iter(blocks)
        if self._shares:
            self._work = do, left
            self._changed.notify_all()
            self._changed.release()
        try:
            self._take(rank, do, left)
        finally:
            if self._shares:
                self._changed.acquire()
                self._work = None
        while self._helping:
            self._changed.wait()

    def help(self, rank: int) -> bool:
        """Take part in what is being done, in the thread of another replica; return whether there was
        something.
        """
        if self._work is None:
            return False
        do, left = self._work
        self._helping += 1
        self._changed.release()
        try:
            self._take(rank, do, left)
        finally:
            self._changed.acquire()
            self._work = None  # nothing is left of it
            self._helping -= 1
            if not self._helping:
                self._changed.notify_all()
        return True

    def _take(self, rank: int, do: Work, left: Iterator[Any]) -> None:
        memory = self._memory[rank]
        for block in left:  # the iterator of a list: each block goes to one thread
            do(memory, block)
