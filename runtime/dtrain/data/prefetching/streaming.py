"""Streams that can only be read in order, read ahead; and maps of their elements in several threads."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dtrain.data.prefetching.tuning import Tuning

T = TypeVar("T")
R = TypeVar("R")
END_PATIENCE_S = 1.0


class _Queue:
    """Elements that one thread has read and another has not taken; errors and the end in their place."""

    def __init__(self, source: Iterator[Any], tuning: Tuning, budget_bytes: int) -> None:
        self.source: Iterator[Any] | None = source
        self.tuning = tuning
        self.budget_bytes = budget_bytes
        self.changed = threading.Condition()
        self.read: deque[tuple[Any, int, BaseException | None]] = deque()
        self.held_bytes = 0
        self.largest_bytes = 0
        self.closed = False

    @property
    def full(self) -> bool:
        """Whether nothing more is to be read for now."""
        beyond = self.held_bytes + self.largest_bytes > self.budget_bytes
        return len(self.read) >= self.tuning.depth or (beyond and bool(self.read))

    def fill(self, size_of: Callable[[Any], int]) -> None:
        """Read until the stream ends, fails or is closed."""
        source, self.source = self.source, None
        assert source is not None
        while True:
            with self.changed:
                while self.full and not self.closed:
                    self.changed.wait()
                if self.closed:
                    return
            error: BaseException | None = None
            value, size = None, 0
            try:
                value = next(source)
                size = size_of(value)
            except BaseException as raised:
                error = raised
            with self.changed:
                self.read.append((value, size, error))
                self.held_bytes += size
                self.largest_bytes = max(self.largest_bytes, size)
                self.changed.notify_all()
            del value
            if error is not None:
                return

    def take(self) -> tuple[Any, BaseException | None]:
        """Wait for the next element."""
        begun_s = time.perf_counter()
        with self.changed:
            while not self.read:
                self.changed.wait()
            value, size, error = self.read.popleft()
            self.held_bytes -= size
            self.changed.notify_all()
        self.waited_s = time.perf_counter() - begun_s
        return value, error

    def close(self) -> None:
        """Have the thread end."""
        with self.changed:
            self.closed = True
            self.read.clear()
            self.changed.notify_all()


def read_ahead(
    source: Iterator[T], tuning: Tuning, budget_bytes: int, size_of: Callable[[Any], int]
) -> Iterator[T]:
    """Yield the elements of a stream, which a thread reads ahead of who takes them.

    The thread ends with the stream, or when the returned iterator is closed or forgotten.

    Args:
        source: the stream; from the first element on it belongs to the thread.
        tuning: how many elements are read ahead.
        budget_bytes: how many bytes they may take; one is read ahead whatever its size.
        size_of: the bytes of an element.
    """
    queue = _Queue(source, tuning, budget_bytes)
    del source
    thread = threading.Thread(target=queue.fill, args=(size_of,), name="dtrain-input-stream", daemon=True)
    thread.start()
    ended_s = time.perf_counter()
    try:
        while True:
            value, error = queue.take()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            now_s = time.perf_counter()
            tuning.note(queue.waited_s, now_s - ended_s)
            ended_s = now_s
            yield value
            del value
    finally:
        queue.close()
        if thread is not threading.current_thread():
            thread.join(END_PATIENCE_S)


def mapped_in_order(function: Callable[[T], R], source: Iterator[T], threads: int) -> Iterator[R]:
    """Yield `function` of each element in order; so many threads compute them, up to twice as many ahead.

    An error of the function, or of the source, is raised in its element's place.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="dtrain-map")
    pending: deque[Future[R]] = deque()
    failed: BaseException | None = None
    try:
        while failed is None:
            try:
                pending.append(pool.submit(function, next(source)))
            except BaseException as error:
                failed = error
            if pending and len(pending) >= 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        if not isinstance(failed, StopIteration):
            raise failed
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
