"""The meeting of the replicas of one process within one `run`."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dtrain.errors import CallsDifferError, WaitTimeoutError
from dtrain.process.clock import LOOK_S
from dtrain.strategies.replicas.calls import Call, check_calls, missing

DEADLINE_S = 3600.0
"""A replica waits so long for the others of its process, whose functions may compute for long."""

Decide = Callable[[Sequence[Any]], Sequence[Any]]
"""From the values of all replicas here, by their order, to what each gets back."""


class ReplicaStopped(BaseException):
    """Ends the function of a replica, because another one has failed; no `except Exception` stops it."""


class Meeting:
    """The meeting of the replicas of one `run`.

    The replica that comes last decides for all, while the others wait. A replica that has ended, or calls
    something else, ends all of them.

    Attributes:
        failure: the first error of a replica or of a call; None while there is none.
    """

    def __init__(self, ranks: Sequence[int], deadline_s: float = DEADLINE_S) -> None:
        """Expect the replicas with these numbers."""
        self._ranks = list(ranks)
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._calls: dict[int, Call] = {}
        self._values: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        self._ended: set[int] = set()
        self._number = 0
        self.failure: BaseException | None = None

    def call(self, rank: int, call: Call, value: Any, decide: Decide, timeout_s: float | None = None) -> Any:
        """Wait for the same call of all others, and return this replica's result.

        Args:
            rank: of the calling replica.
            call: to be compared with that of the others.
            value: what it hands in.
            decide: called once, by the replica that comes last; that of the lowest rank counts.
            timeout_s: deadline of the wait; by default `DEADLINE_S`.

        Raises:
            CallsDifferError: the others call something else, or end without a call; raised in all of them.
            ReplicaStopped: another replica has failed.
            WaitTimeoutError: the others did not come in time.
        """
        with self._changed:
            self._check()
            number = self._number
            self._calls[rank] = call
            self._values[rank] = value, decide
            decides = len(self._calls) + len(self._ended) == len(self._ranks)
            if not decides:
                self._wait(rank, call, number, timeout_s or self._deadline_s)
                return self._results.pop(rank)
        self._decide()
        return self._results.pop(rank)

    def ended(self, rank: int, error: BaseException | None = None) -> None:
        """Count a replica whose function has returned, or has raised `error`."""
        with self._changed:
            self._ended.add(rank)
            if error is not None and not isinstance(error, ReplicaStopped):
                self._fail(error)
            elif self._calls and self.failure is None:
                self._fail(missing(self._calls, rank))

    def leave(self, rank: int) -> None:
        """Take a replica out that makes no calls, because it has nothing to compute."""
        with self._changed:
            if rank in self._ranks:
                self._ranks.remove(rank)
            decides = 0 < len(self._calls) == len(self._ranks) - len(self._ended)
        if decides:
            self._decide()

    def abort(self, error: BaseException) -> None:
        """End all replicas at their next call, because of `error`."""
        with self._changed:
            self._fail(error)

    def _decide(self) -> None:
        """Find all results, in the last replica's thread. Nothing changes meanwhile: the others wait."""
        try:
            check_calls(self._calls)
            if self._ended:
                raise missing(self._calls, min(self._ended))
            decide = self._values[self._ranks[0]][1]
            results = decide([self._values[each][0] for each in self._ranks])
        except BaseException as error:
            with self._changed:
                self._fail(error)
            raise
        with self._changed:
            self._results = dict(zip(self._ranks, results, strict=True))
            self._calls = {}
            self._values = {}
            self._number += 1
            self._changed.notify_all()

    def _wait(self, rank: int, call: Call, number: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._number == number:
            # In pieces: a signal that came just before a wait would be handled only at its end.
            self._changed.wait(min(LOOK_S, max(0.0, until - time.monotonic())))
            if self._number == number and time.monotonic() >= until:
                others = [each for each in self._ranks if each not in self._calls]
                if not others:
                    until += timeout_s
                    continue  # all have come, and the last one decides
                error = WaitTimeoutError(
                    f"replica {rank} waited {timeout_s:g} s in {call} for replica "
                    f"{', '.join(map(str, others))}, which made no call"
                )
                self._fail(error)
                raise error
            self._check()

    def _check(self) -> None:
        if isinstance(self.failure, CallsDifferError):
            raise CallsDifferError(str(self.failure))
        if self.failure is not None:
            raise ReplicaStopped(f"another replica has failed: {self.failure}")

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._changed.notify_all()
