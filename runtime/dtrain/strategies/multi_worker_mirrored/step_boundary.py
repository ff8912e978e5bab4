"""The moments between two steps, when a replica owes its part of the next and nobody writes variables."""

import threading
from types import TracebackType


class StepBoundary:
    """Lets other threads of this process in between two steps, each at the next moment that comes.

    The thread that trains calls `begin_step` and `end_step`. Within ``with boundary:`` another thread, or
    that one between two steps, finds the variables at rest.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = False
        self._inside = 0
        self._wanted = 0

    def begin_step(self) -> None:
        """Wait until every thread that would like to come in has been in and has left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside and not self._wanted)
            self._steps = True

    def end_step(self) -> None:
        """Let others in."""
        with self._changed:
            self._steps = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._wanted += 1
            try:
                self._changed.wait_for(lambda: not self._steps)
            finally:
                self._wanted -= 1
                self._changed.notify_all()
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
