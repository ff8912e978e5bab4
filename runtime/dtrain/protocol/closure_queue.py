"""The queue of a coordinator's closures: which one a worker runs next, and what came of each. Pure.

The rule *Closures* (docs/design/protocol.md#closures):

1. Closures are handed out in the order in which they were scheduled, each to one worker.
2. A worker that is lost gives its closure back, which is then the next one that is handed out. The first
   report of a closure counts, from whichever worker; later ones are void.
3. The first error is kept, and every closure that no worker has begun is cancelled. No closure is scheduled
   before `join`, `done` or `schedule` has raised the error, and they raise it only after every
   running closure has ended; the results of these are kept, except that a further error is their own only.
4. Every closure below `settled` has ended, for good: servers need not remember what it has changed.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import msgspec

Work = TypeVar("Work")
Worker = Hashable
"""The worker at the other end of one connection."""


class ClosureQueue(msgspec.Struct, Generic[Work]):
    """The closures that have not ended.

    Attributes:
        scheduled: how many closures there have been; their numbers begin with 1.
        error: the closure that failed first; None once its error has been raised.
    """

    scheduled: int = 0
    error: Work | None = None
    _open: dict[int, Work] = msgspec.field(default_factory=dict)
    _waiting: list[int] = msgspec.field(default_factory=list)
    _runs: dict[Worker, int] = msgspec.field(default_factory=dict)

    @property
    def settled(self) -> int:
        return next(iter(self._open), self.scheduled + 1)

    @property
    def empty(self) -> bool:
        return not self._open

    @property
    def running(self) -> dict[Worker, int]:
        return {worker: number for worker, number in self._runs.items() if number in self._open}

    def put(self, work: Work) -> int:
        """Schedule a closure; return its number. An earlier error must have been raised before."""
        assert self.error is None, "an error is taken before another closure is scheduled"
        self.scheduled += 1
        self._open[self.scheduled] = work
        heappush(self._waiting, self.scheduled)
        return self.scheduled

    def assign(self, worker: Worker) -> Work | None:
        """Return the closure that a worker runs from now on; None: no closure waits."""
        assert worker not in self._runs, "a worker runs one closure at a time"
        while self._waiting:
            if (number := heappop(self._waiting)) in self._open:
                self._runs[worker] = number
                return self._open[number]
        return None

    def ended(self, worker: Worker, number: int, *, failed: bool = False) -> list[Work]:
        """End a closure, and return it and those that are cancelled; nothing if its end was known."""
        if self._runs.get(worker) == number:
            del self._runs[worker]
        if number not in self._open:
            return []
        work = self._open.pop(number)
        if not failed or self.error is not None:
            return [work]
        self.error = work
        begun = set(self._runs.values())
        return [work, *[self._open.pop(each) for each in sorted(self._open) if each not in begun]]

    def lost(self, worker: Worker) -> None:
        number = self._runs.pop(worker, None)
        if number is not None and number in self._open:
            heappush(self._waiting, number)

    def take_error(self) -> Work | None:
        """Return the closure that has failed first, and forget it; every closure that ran has ended."""
        assert self.empty, "closures that run are waited for first"
        error, self.error = self.error, None
        return error
