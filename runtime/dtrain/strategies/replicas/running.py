"""The threads in which the replicas of a process run a function at the same time."""

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from dtrain.process.clock import LOOK_S
from dtrain.strategies.replicas.meeting import Meeting

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

    def run(self, parts: Sequence[Part], meeting: Meeting) -> None:
        """Run every part, which raises nothing, in a thread; return when all have ended.

        Raises:
            BaseException: the first error of the meeting, as a replica's function raised it; or what
                interrupts this thread. No part runs any more.
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
    """One thread for each replica, which takes parts from a queue of its own."""

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
        """Give each thread its part."""
        for queue, part in zip(self._waiting, parts, strict=True):
            queue.put(part)
            self._open += 1

    def wait(self) -> None:
        """Wait until all parts have ended; look up now and then, as signals are handled between waits."""
        while self._open:
            try:
                self._ended.get(timeout=LOOK_S)
            except Empty:
                continue
            self._open -= 1

    def stop(self) -> None:
        """Let the threads end."""
        for queue in self._waiting:
            queue.put(None)


def _work(queue: "SimpleQueue[Part | None]", ended: "SimpleQueue[None]") -> None:
    """Run parts, one after another, until there is none."""
    while (part := queue.get()) is not None:
        try:
            part()
        finally:
            part = None  # nothing of the program is kept while this thread waits
            ended.put(None)


def _stop(idle: "list[_Threads]") -> None:
    for threads in idle:
        threads.stop()
