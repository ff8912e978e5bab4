"""Elements that threads compute before they are asked for: by number, or of a stream, in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from dtrain.data.prefetching.tuning import Forecast, Tuning

T = TypeVar("T")
R = TypeVar("R")
JOIN_PATIENCE_S = 1.0


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


END_PATIENCE_S = 10.0
"""How long `close` waits for what a thread has begun to read."""


class Read(NamedTuple):
    """Something that was read: a value of so many bytes, or the error that reading it raised."""

    value: Any
    size: int
    error: BaseException | None = None


def _read(read: Callable[[], T], size_of: Callable[[T], int]) -> Read:
    try:
        value = read()
        return Read(value, size_of(value))
    except BaseException as error:
        return Read(None, 0, error)


class ReadAhead(Generic[T]):
    """Elements by number for several replicas of this process, read ahead under a memory budget.

    An error that `read` raises in a thread is raised where the element is asked for. The element last asked
    for, by each replica, stays, and may be asked for again.
    """

    def __init__(
        self,
        read: Callable[[int], T],
        size_of: Callable[[T], int],
        forecasts: Sequence[Forecast],
        tuning: Tuning,
    ) -> None:
        """Begin; several threads call `read` at once where `tuning` says so, from the first element on."""
        self._read = read
        self._size_of = size_of
        self._forecasts = forecasts
        self._tuning = tuning
        self._several = tuning.threads_max > 1
        self._one_at_a_time = threading.Lock()
        self._changed = threading.Condition()
        # All below belongs to `_changed`.
        self._ready: dict[int, Read] = {}
        self._under_way: set[int] = set()
        self._held_bytes = 0
        self._largest_bytes = 0
        self._last: dict[int, tuple[int, T]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._ended_s: float | None = None

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def at(self, number: int, reader: int = 0) -> T:
        """Return the element of a number for one of the replicas, by its place in `forecasts`."""
        last = self._last.get(reader)
        if last is not None and last[0] == number:
            return last[1]
        begun_s = time.perf_counter()
        self._last.pop(reader, None)
        found = self._taken(number, reader)
        if found is None:
            value = self._read_now(number)
        elif found.error is not None:
            raise found.error
        else:
            value = found.value
        self._last[reader] = number, value
        self._note(begun_s, value if found is None else None)
        return value

    def close(self, patience_s: float = END_PATIENCE_S) -> None:
        """Drop what was read ahead and end the threads; wait so long for what they are reading."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._held_bytes = 0
            self._changed.notify_all()
        deadline_s = time.monotonic() + patience_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _taken(self, number: int, reader: int) -> Read | None:
        """Move the forecast, and return what a thread has read; None if no thread has begun to."""
        with self._changed:
            while len(self._threads) < self._tuning.threads and not self._closed:
                place = len(self._threads)
                thread = threading.Thread(
                    target=self._run, args=(place,), name=f"dtrain-input-{place}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._forecasts[reader].asked(number)
            for passed in [each for each in self._ready if each != number and not self._awaited(each)]:
                self._drop(passed)
            while number in self._under_way:
                self._changed.wait()
            found = self._drop(number) if number in self._ready else None
            self._changed.notify_all()
        return found

    def _awaited(self, number: int) -> bool:
        return any(forecast.awaits(number) for forecast in self._forecasts)

    def _drop(self, number: int) -> Read:
        found = self._ready.pop(number)
        self._held_bytes -= found.size
        return found

    def _note(self, begun_s: float, fresh: T | None) -> None:
        now_s = time.perf_counter()
        with self._changed:
            if fresh is not None:
                self._largest_bytes = max(self._largest_bytes, self._size_of(fresh))
            if self._ended_s is not None:
                self._tuning.note(now_s - begun_s, now_s - self._ended_s)
            self._tuning.fit_into_budget(self._largest_bytes)
            self._ended_s = now_s

    def _read_now(self, number: int) -> T:
        if self._several:
            return self._read(number)
        with self._one_at_a_time:
            return self._read(number)

    def _run(self, place: int) -> None:
        """Read what will be asked for next, until closed. Threads beyond `tuning.threads` rest."""
        while (number := self._to_read(place)) is not None:
            read = _read(partial(self._read_now, number), self._size_of)
            with self._changed:
                self._under_way.discard(number)
                if not self._closed:
                    self._ready[number] = read
                    self._held_bytes += read.size
                    self._largest_bytes = max(self._largest_bytes, read.size)
                self._changed.notify_all()
            del read

    def _to_read(self, place: int) -> int | None:
        """Wait for a number that is to be read ahead, and mark it as under way; None when closed."""
        with self._changed:
            while not self._closed:
                number = self._next_to_read() if place < self._tuning.threads else None
                if number is not None:
                    self._under_way.add(number)
                    return number
                self._changed.wait()
            return None

    def _next_to_read(self) -> int | None:
        begun = len(self._under_way)
        wanted_bytes = self._held_bytes + (begun + 1) * self._largest_bytes
        if (self._ready or begun) and wanted_bytes > self._tuning.budget_bytes:
            return None
        coming = [forecast.upcoming(self._tuning.depth) for forecast in self._forecasts]
        for turn in range(max(map(len, coming), default=0)):
            for numbers in coming:
                if turn < len(numbers) and not (
                    numbers[turn] in self._ready or numbers[turn] in self._under_way
                ):
                    return numbers[turn]
        return None


class _StreamAhead(Generic[T]):
    """Elements that a thread has read of a stream before they are taken."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.changed = threading.Condition()
        # All below belongs to `changed`.
        self.read: deque[Read] = deque()
        self.held_bytes = 0
        self.largest_bytes = 0
        self.closed = False

    def fill(self, source: Iterator[T], size_of: Callable[[T], int]) -> None:
        """Read until the stream ends, fails or is closed; the error, or end, is the last to be taken."""
        error: BaseException | None = None
        while error is None:
            with self.changed:
                while self._rests():
                    self.changed.wait()
                if self.closed:
                    return
            read = _read(lambda: next(source), size_of)
            error = read.error
            with self.changed:
                self.read.append(read)
                self.held_bytes += read.size
                self.largest_bytes = max(self.largest_bytes, read.size)
                self.changed.notify_all()
            del read

    def _rests(self) -> bool:
        if self.closed or not self.read:
            return False
        has_room = self.held_bytes + self.largest_bytes <= self.tuning.budget_bytes
        return not has_room or len(self.read) >= self.tuning.depth

    def take(self) -> Read:
        with self.changed:
            while not self.read:
                self.changed.wait()
            read = self.read.popleft()
            self.held_bytes -= read.size
            self.changed.notify_all()
        return read

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.read.clear()
            self.changed.notify_all()


def read_ahead(source: Iterator[T], size_of: Callable[[T], int], tuning: Tuning) -> Iterator[T]:
    """Yield the elements of a stream, which a thread reads ahead of who takes them.

    The thread ends with the stream, or when the returned iterator is closed or forgotten. From the first
    element on the stream belongs to it.
    """
    ahead: _StreamAhead[T] = _StreamAhead(tuning)
    thread = threading.Thread(
        target=ahead.fill, args=(source, size_of), name="dtrain-input-stream", daemon=True
    )
    del source  # so that it is closed in the thread
    thread.start()
    ended_s = time.perf_counter()
    try:
        while True:
            begun_s = time.perf_counter()
            read = ahead.take()
            if isinstance(read.error, StopIteration):
                return
            if read.error is not None:
                raise read.error
            now_s = time.perf_counter()
            tuning.note(now_s - begun_s, now_s - ended_s)
            ended_s = now_s
            yield read.value
            del read
    finally:
        ahead.close()
        if thread is not threading.current_thread():
            thread.join(JOIN_PATIENCE_S)
