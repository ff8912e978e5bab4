"""The clock of a driver: the time, and every way to wait that is not a connection.

A driver takes a `Clock` and uses no other time, thread or event. So a simulation can run the driver as it is,
in virtual time.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

LOOK_S = 0.5


class Event(Protocol):
    """A flag that threads wait for; see `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""

    def set(self) -> None:
        """Set the flag, and wake all waiting threads."""

    def clear(self) -> None:
        """Take the flag back."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most so many seconds; return whether it is."""


class Running(Protocol):
    """A thread that was started; see `threading.Thread`."""

    def is_alive(self) -> bool:
        """Return whether the thread has not ended yet."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end, at most so many seconds; not at all in the thread itself."""


class Clock(Protocol):
    """The time, and what waits for it."""

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def wall(self) -> float:
        """Return the seconds since 1970, as far as the machine knows them."""

    def sleep(self, seconds: float) -> None:
        """Let this time pass."""

    def event(self) -> Event:
        """Return a flag that is not set."""

    def start(self, run: Callable[[], None], name: str) -> Running:
        """Run a function in a thread of its own, which does not keep the process alive."""


class SystemEvent(threading.Event):
    """A flag; waiting for it lets signal handlers run."""

    def wait(self, timeout: float | None = None) -> bool:
        """See `Event.wait`. A signal just before a wait without end would be handled only at its end."""
        if timeout is not None or threading.current_thread() is not threading.main_thread():
            return super().wait(timeout)
        while not super().wait(LOOK_S):
            pass
        return True


class SystemThread(threading.Thread):
    """A thread that does not keep the process alive."""

    def join(self, timeout: float | None = None) -> None:
        """Wait as `Running.join`."""
        if self is not threading.current_thread():
            super().join(timeout)


class SystemClock:
    """The machine's own clock and threads."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    event = staticmethod(SystemEvent)

    @staticmethod
    def start(run: Callable[[], None], name: str) -> SystemThread:
        """Start a thread as `Clock.start`."""
        thread = SystemThread(target=run, name=name, daemon=True)
        thread.start()
        return thread


SYSTEM = SystemClock()
