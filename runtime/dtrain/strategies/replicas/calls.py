"""Calls that all replicas make together: in threads of one process, which meet, and beside other processes.

Processes of one host call through memory that all of them map, others on streams.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from dtrain.errors import CallsDifferError, WaitTimeoutError
from dtrain.exchange.calls import GivenCall, ReplicaCall
from dtrain.exchange.machine import Exchange
from dtrain.process.clock import LOOK_S
from dtrain.types import Array

DEADLINE_S = 3600.0
"""A replica waits so long for the others of its process, whose functions may compute for long."""

Decide = Callable[[Sequence[Any]], Any]
"""From the values of all replicas here, by their order, to what all get back."""


class ReplicaStopped(BaseException):
    """Ends the function of a replica, because another one has failed; no `except Exception` stops it."""


class ThreadMeeting:
    """The meeting of the replicas of one `run`; `failure` is the first error.

    The replica that comes last decides for all, while the others wait. A replica that has ended, or calls
    something else, ends all of them.
    """

    def __init__(self, ranks: Sequence[int], deadline_s: float = DEADLINE_S) -> None:
        self._exchange = Exchange(list(ranks))
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._number = self._waiting = self._unread = 0
        self._result: Any = None
        self.failure: BaseException | None = None

    def call(
        self, rank: int, call: ReplicaCall, value: Any, decide: Decide, timeout_s: float | None = None
    ) -> Any:
        """Wait for the same call of all others, and return the result of all.

        The replica that comes last calls `decide`; that of the lowest rank counts.

        Raises:
            CallsDifferError: the others call something else, or end without a call; raised in all of them.
            ReplicaStopped: another replica has failed.
            WaitTimeoutError: the others did not come within `timeout_s`, by default `DEADLINE_S`.
        """
        with self._changed:
            self._check()
            number = self._number
            self._exchange.give(rank, number, GivenCall(call, (value, decide)))
            self._waiting += 1
            if not self._is_complete():
                self._wait(rank, call, number, timeout_s or self._deadline_s)
                result, self._unread = self._result, self._unread - 1
                if not self._unread:
                    self._result = None  # nothing of the program is kept
                return result
        return self._decide()

    def ended(self, rank: int, error: BaseException | None = None) -> None:
        """Count a replica whose function has returned, or has raised `error`."""
        with self._changed:
            self._exchange.end(rank)
            if error is not None and not isinstance(error, ReplicaStopped):
                self._fail(error)
            elif self._waiting:
                self._is_complete()

    def leave(self, rank: int) -> None:
        """Take a replica out that makes no calls, because it has nothing to compute."""
        with self._changed:
            self._exchange.end(rank, examples=0)
            decides = bool(self._waiting) and self._is_complete()
        if decides:
            self._decide(apart=True)

    def abort(self, error: BaseException) -> None:
        """End all replicas at their next call."""
        with self._changed:
            self._fail(error)

    def _is_complete(self) -> bool:
        """Return whether the next call is there of all, or fail, if it cannot be any more."""
        try:
            late = self._exchange.wanted(self._number)
        except CallsDifferError as error:
            self._fail(error)
            return False
        return not late

    def _decide(self, *, apart: bool = False) -> Any:
        """Compute the result, in the last replica's thread, which is `apart` if it makes no call.

        Nothing changes meanwhile: the others wait.
        """
        try:
            given = self._exchange.given(self._number)
            decide = given[0].arrays[1]
            result = decide([each.arrays[0] for each in given])
        except BaseException as error:
            self.abort(error)
            raise
        with self._changed:
            self._unread = len(given) - (not apart)
            self._result = result if self._unread else None
            self._exchange.forget(self._number)
            self._number += 1
            self._waiting = 0
            self._changed.notify_all()
        return result

    def _wait(self, rank: int, call: ReplicaCall, number: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._number == number:
            self._check()
            # In pieces: a signal that came just before a wait would be handled only at its end.
            self._changed.wait(min(LOOK_S, max(0.0, until - time.monotonic())))
            if self._number == number and self.failure is None and time.monotonic() >= until:
                if not (others := self._exchange.wanted(number)):
                    until += timeout_s
                    continue  # all have come, and the last one decides
                error = WaitTimeoutError(
                    f"replica {rank} waited {timeout_s:g} s in {call} for replica "
                    f"{', '.join(map(str, others))}, which made no call"
                )
                self._fail(error)
                raise error

    def _check(self) -> None:
        if isinstance(self.failure, CallsDifferError):
            raise CallsDifferError(str(self.failure))
        if self.failure is not None:
            raise ReplicaStopped(f"another replica has failed: {self.failure}")

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._changed.notify_all()


Part = Callable[[], None]


class ReplicaThreads:
    """The threads of replicas; the program's own thread starts their parts.

    They are daemons, so a program may end while they wait for work. A thread that is still on its way back
    from a step may be given its next part: it wakes up once for both. `abort` ends the waits of replicas for
    one that has failed, for a reason; `begins` is called first in the thread of each.
    """

    def __init__(
        self,
        replicas: int,
        abort: Callable[[str], None] = lambda reason: None,
        begins: Callable[[int], object] = lambda replica: None,
    ) -> None:
        self.abort = abort
        self._begins = begins
        self._given: list[SimpleQueue[Part | None]] = [SimpleQueue() for _ in range(replicas)]
        self._threads: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()
        self._left = [0] * replicas
        self._ended = self._told = 0
        self._for_all = False
        self._error: BaseException | None = None

    def is_idle(self, replica: int) -> bool:
        with self._changed:
            return not self._left[replica]

    @property
    def all_idle(self) -> bool:
        with self._changed:
            return not any(self._left)

    def start(self, replica: int, part: Part) -> None:
        with self._changed:
            self._left[replica] += 1
        if replica not in self._threads:
            thread = threading.Thread(
                target=self._work, args=(replica,), name=f"replica {replica}", daemon=True
            )
            self._threads[replica] = thread
            thread.start()
        self._given[replica].put(part)

    def run(self, part: Part) -> None:
        """Compute a part in this thread; raise the error of the part that failed first, when no part runs any
        more.
        """
        try:
            part()
        except BaseException as error:
            self._give_up(error)
            raise self._error or error from None

    def wait(self, *, for_all: bool) -> None:
        """Return when all parts have ended, or one has since the last wait.

        Raises:
            BaseException: the error of the part that failed first, or what interrupts this thread; when it
                is raised no part runs any more.
        """
        try:
            with self._changed:
                self._for_all = for_all
                while self._error is None and any(self._left) and (for_all or self._ended == self._told):
                    # A signal that came just before a wait without end would be handled only at its end.
                    self._changed.wait(LOOK_S)
                self._told = self._ended
            if self._error is not None:
                raise self._error
        except BaseException as error:
            self._give_up(error)
            raise

    def close(self, *, in_vain: bool) -> None:
        """End the threads after their parts; if those are `in_vain`, waits in them end at once."""
        if in_vain and not self.all_idle:
            self.abort("training has ended")
        self.end()
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()

    def end(self) -> None:
        """End every thread after its parts, without a wait."""
        for replica in self._threads:
            self._given[replica].put(None)

    def _work(self, replica: int) -> None:
        self._begins(replica)
        while (part := self._given[replica].get()) is not None:
            try:
                if self._error is None:
                    part()
            except BaseException as error:
                self._give_up(error, join=False)
            finally:
                part = None  # nothing of the program is kept while this thread waits
                with self._changed:
                    self._left[replica] -= 1
                    self._ended += 1
                    if not (self._for_all and any(self._left)) or self._error is not None:
                        self._changed.notify_all()

    def _give_up(self, error: BaseException, *, join: bool = True) -> None:
        """Keep the first error, and end the parts of all others; with `join` no part runs any more then."""
        with self._changed:
            first = self._error is None
            self._error = self._error or error
        if first:
            self.abort(f"another replica has failed: {type(error).__name__}: {error}")
        if join:
            self.close(in_vain=False)


class ReplicaPool:
    """Threads for as many replicas, kept from one `run` to the next until the pool is dropped.

    A `run` within another has its own.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._idle: list[ReplicaThreads] = []
        weakref.finalize(self, _end, self._idle)

    def run(self, parts: Sequence[Part], meeting: ThreadMeeting) -> None:
        """Run every part, which raises nothing, in a thread; return when all have ended.

        Raises the first error of the meeting, or what interrupts this thread; no part runs any more then.
        """
        threads = self._idle.pop() if self._idle else ReplicaThreads(self._replicas)
        threads.abort = lambda reason: meeting.abort(ReplicaStopped(reason))
        for replica, part in enumerate(parts):
            threads.start(replica, part)
        threads.wait(for_all=True)
        threads.abort = lambda reason: None  # nothing of this meeting is kept
        self._idle.append(threads)
        if meeting.failure is not None:
            raise meeting.failure


def _end(idle: list[ReplicaThreads]) -> None:
    for threads in idle:
        threads.end()


class CollectiveCalls(Protocol):
    """The connection of one process to the others; see `roles.collective.calls.Calls`."""

    def exchange(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[list[Array]]: ...

    def all_reduce(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[Array]: ...


class PeerProcesses:
    """All `tasks` processes of a training, one replica each; this is `number`. The first call meets them."""

    def __init__(self, tasks: int, number: int, meet: Callable[[], CollectiveCalls]) -> None:
        """Take part; `meet` waits for the other processes."""
        self.tasks = tasks
        self.number = number
        self._meet = meet
        self._calls: CollectiveCalls | None = None

    def exchange(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every process, by its number; shapes may differ.

        Waits have a deadline, and their errors name the awaited processes. Arrays of any dtype but object are
        read before this returns. A `CallsDifferError` is raised in every process.
        """
        return self._made().exchange(call, arrays)

    def all_reduce(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of arrays of one shape and dtype, added up in order of numbers.

        Large sums may not be written to. A `CallsDifferError` is raised in every process.
        """
        return self._made().all_reduce(call, arrays)

    def _made(self) -> CollectiveCalls:
        if self._calls is None:
            self._calls = self._meet()
        return self._calls
