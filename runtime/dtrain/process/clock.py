"""The clock of a driver: the time, and every way to wait that is not a connection.

A driver takes a `Clock` and uses no other time, thread or event. So a simulation can run the driver as it is,
in virtual time.
"""

import threading
import time
from collections.abc import Callable

LOOK_S = 0.5


class Event(threading.Event):
    """A flag; waiting for it lets signal handlers run."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in short pieces: a signal just before a wait without end would be handled only at its end."""
        if timeout is not None or threading.current_thread() is not threading.main_thread():
            return super().wait(timeout)
        while not super().wait(LOOK_S):
            pass
        return True


class Running(threading.Thread):
    """A thread that was started and does not keep the process alive."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end, at most so many seconds; not at all in the thread itself."""
        if self is not threading.current_thread():
            super().join(timeout)


class Clock:
    """The machine's clock and threads.

    `now` is in seconds and never goes back; `wall` is in seconds since 1970, as far as the machine knows.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    event = staticmethod(Event)

    @staticmethod
    def start(run: Callable[[], None], name: str) -> Running:
        """Run a function in a thread of its own, which does not keep the process alive."""
        thread = Running(target=run, name=name, daemon=True)
        thread.start()
        return thread


SYSTEM = Clock()
