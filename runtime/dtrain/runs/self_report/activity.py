"""The activity of a replica, by which others tell one that works from one that is stuck.

Others wait for it at every step. It works if it has read, computed or evaluated a batch not long ago, or if
a callback is running, which may take any time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Activity:
    """The account of one task, written by the thread that trains.

    Attributes:
        at_s: when it last dealt with a batch, by the machine's monotonic clock.
        busy_with: what it does that takes its own time; None: nothing.
        input_s: for how long it has waited for the batches that were read so far.
        reading_since_s: since when it waits for the one that is read now; None: it does not.
    """

    def __init__(self) -> None:
        self.at_s = time.monotonic()
        self.busy_with: str | None = None
        self.input_s = 0.0
        self.reading_since_s: float | None = None

    def waited_s(self, now_s: float) -> float:
        """Return for how long it has waited for batches, with the one that is read now."""
        since_s = self.reading_since_s
        return self.input_s + (max(0.0, now_s - since_s) if since_s is not None else 0.0)

    def beat(self) -> None:
        """Record that a batch was read, computed or evaluated."""
        self.at_s = time.monotonic()

    def after(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return the function with a record of each of its ends."""

        @wraps(call)
        def recorded(*arguments: P.args, **named: P.kwargs) -> R:
            result = call(*arguments, **named)
            self.beat()
            return result

        return recorded

    def reading(self, read: Callable[P, R]) -> Callable[P, R]:
        """Return the function, which reads a batch, with an account of the time that it takes."""

        @wraps(read)
        def timed(*arguments: P.args, **named: P.kwargs) -> R:
            begun_s = self.reading_since_s = time.monotonic()
            try:
                return read(*arguments, **named)
            finally:
                self.beat()
                self.input_s += self.at_s - begun_s
                self.reading_since_s = None

        return timed

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Record that this runs."""
        before = self.busy_with
        self.busy_with = what
        try:
            yield
        finally:
            self.busy_with = before
            self.beat()


NO_ACTIVITY = Activity()
"""That of a process whose activity no other task asks for."""
