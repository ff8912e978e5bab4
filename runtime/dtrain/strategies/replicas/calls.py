"""Calls that all replicas make together: in threads of one process, which meet, and beside other processes.

Processes of one host call through memory that all of them map, others on streams.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
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
        self._number = self._unread = 0
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
            decides = self._is_complete()
            if not decides:
                self._wait(rank, call, number, timeout_s or self._deadline_s)
        if decides:
            self._decide()
        with self._changed:
            result, self._unread = self._result, self._unread - 1
            if not self._unread:
                self._result = None  # nothing of the program is kept
            return result

    def ended(self, rank: int, error: BaseException | None = None) -> None:
        """Count a replica whose function has returned, or has raised `error`."""
        with self._changed:
            self._exchange.end(rank)
            if error is not None and not isinstance(error, ReplicaStopped):
                self._fail(error)
            else:
                self._is_complete()

    def leave(self, rank: int) -> None:
        """Take a replica out that makes no calls, because it has nothing to compute."""
        with self._changed:
            self._exchange.end(rank, examples=0)
            decides = self._is_complete()
        if decides:
            self._decide()

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
        return not late and any(self._exchange.made(each) > self._number for each in self._exchange.members)

    def _decide(self) -> None:
        """Compute the result, in the last replica's thread. Nothing changes meanwhile: the others wait."""
        try:
            given = self._exchange.given(self._number)
            values, decides = zip(*[each.arrays for each in given], strict=True)
            result = decides[0](values)
        except BaseException as error:
            self.abort(error)
            raise
        with self._changed:
            self._result, self._unread = result, len(given)
            self._exchange.forget(self._number)
            self._number += 1
            self._changed.notify_all()

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


class ReplicaPool:
    """Threads for as many replicas, kept from one `run` to the next; a `run` within another has its own.

    They are daemons, so a program may end while they wait for work; they end when the pool is dropped.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._lock = threading.Lock()
        self._idle: list[_Threads] = []
        weakref.finalize(self, _stop, self._idle)

    def run(self, parts: Sequence[Part], meeting: ThreadMeeting) -> None:
        """Run every part, which raises nothing, in a thread; return when all have ended.

        Raises the first error of the meeting, or what interrupts this thread; no part runs any more then.
        """
        with self._lock:
            threads = self._idle.pop() if self._idle else _Threads(self._replicas)
        try:
            threads.begin(parts)
            try:
                threads.wait()
            except BaseException as error:
                meeting.abort(error)
                threads.wait()
                raise
        finally:
            with self._lock:
                self._idle.append(threads)
        if meeting.failure is not None:
            raise meeting.failure


class _Threads:
    """One thread for each replica, with a queue of its own."""

    def __init__(self, replicas: int) -> None:
        self._waiting: list[SimpleQueue[Part | None]] = [SimpleQueue() for _ in range(replicas)]
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._open = 0
        for number, queue in enumerate(self._waiting):
            target = threading.Thread(
                target=_work, args=(queue, self._ended), name=f"run-{number}", daemon=True
            )
            target.start()

    def begin(self, parts: Sequence[Part]) -> None:
        for queue, part in zip(self._waiting, parts, strict=True):
            queue.put(part)
            self._open += 1

    def wait(self) -> None:
        """Wait until all parts have ended, in pieces, as signals are handled between waits."""
        while self._open:
            try:
                self._ended.get(timeout=LOOK_S)
            except Empty:
                continue
            self._open -= 1

    def stop(self) -> None:
        for queue in self._waiting:
            queue.put(None)


def _work(queue: "SimpleQueue[Part | None]", ended: "SimpleQueue[None]") -> None:
    """Run parts, one after another, until a None."""
    while (part := queue.get()) is not None:
        try:
            part()
        finally:
            part = None  # nothing of the program is kept while this thread waits
            ended.put(None)


def _stop(idle: "list[_Threads]") -> None:
    for threads in idle:
        threads.stop()


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
