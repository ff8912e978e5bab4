"""One thread a replica: all compute their parts of a step at the same time."""

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from dtrain.process.clock import LOOK_S

Work = Callable[[], None]
SWITCH_S = 0.0002
"""A thread that has the interpreter gives it up so soon when another wants it. With Python's 5 ms a replica
often waits longer for the few lines of another, between two products of matrices, than the products take.
"""


class ReplicaThreads:
    """The threads of the replicas of one training; the program's own thread starts their parts.

    A thread that is still on its way back from a step may be given its next part: it wakes up once for both.
    """

    def __init__(self, replicas: int, abort: Callable[[str], None]) -> None:
        """Begin; `abort` ends the waits of replicas for one that has failed, for a reason."""
        self._abort = abort
        self._given: list[SimpleQueue[Work | None]] = [SimpleQueue() for _ in range(replicas)]
        self._threads: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()
        self._left = [0] * replicas
        self._ended = self._told = 0
        self._error: BaseException | None = None
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._switch_s))

    def is_idle(self, replica: int) -> bool:
        """Return whether a replica has ended its part, or has none."""
        with self._changed:
            return not self._left[replica]

    @property
    def all_idle(self) -> bool:
        """Whether no part is being computed."""
        with self._changed:
            return not any(self._left)

    def start(self, replica: int, part: Work) -> None:
        """Begin the next part of a replica in its thread."""
        with self._changed:
            self._left[replica] += 1
        if replica not in self._threads:
            thread = threading.Thread(target=self._work, args=(replica,), name=f"replica {replica}")
            self._threads[replica] = thread
            thread.start()
        self._given[replica].put(part)

    def run(self, part: Work) -> None:
        """Compute a part in this thread, while others compute theirs.

        Raises:
            BaseException: the error of the part that failed first; when it is raised no part runs any more.
        """
        try:
            part()
        except BaseException as error:
            self._give_up(error)
            raise self._error or error from None

    def wait(self, *, for_all: bool) -> None:
        """Return when all parts that are being computed have ended, or one has since the last wait.

        Raises:
            BaseException: the error of the part that failed first, or what interrupts this thread; when it
                is raised no part runs any more.
        """
        try:
            with self._changed:
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
        """End the threads; what is still computed is waited for, or is `in_vain`: waits in it end at once."""
        sys.setswitchinterval(self._switch_s)
        if in_vain and not self.all_idle:
            self._abort("training has ended")
        for replica, thread in self._threads.items():
            self._given[replica].put(None)
            thread.join()
        self._threads.clear()

    def _work(self, replica: int) -> None:
        while (part := self._given[replica].get()) is not None:
            try:
                if self._error is None:
                    part()
            except BaseException as error:
                self._give_up(error, join=False)
            finally:
                with self._changed:
                    self._left[replica] -= 1
                    self._ended += 1
                    self._changed.notify_all()

    def _give_up(self, error: BaseException, *, join: bool = True) -> None:
        """Keep the first error, and end the parts of all others; with `join` no part runs any more then."""
        with self._changed:
            first = self._error is None
            self._error = self._error or error
        if first:
            self._abort(f"another replica has failed: {type(error).__name__}: {error}")
        if join:
            self.close(in_vain=False)
