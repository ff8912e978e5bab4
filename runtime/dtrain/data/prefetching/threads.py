"""Elements that threads compute before they are asked for: by number, or of a stream, in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

from dtrain.data.prefetching.tuning import Forecast, Tuning

T = TypeVar("T")
R = TypeVar("R")
JOIN_PATIENCE_S = 1.0


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
            thread.join(JOIN_PATIENCE_S)


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


class ReadAhead(Generic[T]):
    """Elements by number for several replicas of this process, read ahead under a memory budget.

    Results and their order are those of `read` itself. An error that it raises in a thread is raised where
    the element is asked for, with the traceback of the thread. The element last asked for, by each replica,
    stays, and may be asked for again.
    """

    def __init__(
        self,
        read: Callable[[int], T],
        size_of: Callable[[T], int],
        forecasts: Sequence[Forecast],
        tuning: Tuning,
        budget_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin; threads start when the first element has been asked for.

        Args:
            read: computes an element by its number. Several threads call it at once where `tuning` says so.
            size_of: the bytes of an element.
            forecasts: of each replica.
            tuning: how far ahead, and with how many threads.
            budget_bytes: of all elements that were read ahead; one is read ahead whatever its size.
            clock: returns seconds, for the tuning.
        """
        self._read = read
        self._size_of = size_of
        self._forecasts = forecasts
        self._tuning = tuning
        self._budget_bytes = budget_bytes
        self._clock = clock
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
        """The bytes that were read ahead and not asked for yet."""
        return self._held_bytes

    def at(self, number: int, reader: int = 0) -> T:
        """Return the element of a number for one of the replicas, by its place in `forecasts`."""
        last = self._last.get(reader)
        if last is not None and last[0] == number:
            return last[1]
        begun_s = self._clock()
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
            self._forecasts[reader].asked(number)
            for passed in [each for each in self._ready if each != number and not self._awaited(each)]:
                self._drop(passed)
            while number in self._under_way:
                self._changed.wait()
            found = self._drop(number) if number in self._ready else None
            self._start_threads()
            self._changed.notify_all()
        return found

    def _awaited(self, number: int) -> bool:
        return any(forecast.awaits(number) for forecast in self._forecasts)

    def _drop(self, number: int) -> Read:
        found = self._ready.pop(number)
        self._held_bytes -= found.size
        return found

    def _note(self, begun_s: float, fresh: T | None) -> None:
        now_s = self._clock()
        with self._changed:
            if fresh is not None:
                self._largest_bytes = max(self._largest_bytes, self._size_of(fresh))
            if self._ended_s is not None:
                self._tuning.note(now_s - begun_s, now_s - self._ended_s)
            self._tuning.fit_into(self._budget_bytes, self._largest_bytes)
            self._ended_s = now_s

    def _read_now(self, number: int) -> T:
        if self._several:
            return self._read(number)
        with self._one_at_a_time:
            return self._read(number)

    def _start_threads(self) -> None:
        while len(self._threads) < self._tuning.threads and not self._closed:
            name = f"dtrain-input-{len(self._threads)}"
            thread = threading.Thread(target=self._run, args=(len(self._threads),), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, place: int) -> None:
        """Read what will be asked for next, until closed. Threads beyond `tuning.threads` rest."""
        while (number := self._to_read(place)) is not None:
            try:
                value = self._read_now(number)
                read = Read(value, self._size_of(value))
            except BaseException as error:
                read = Read(None, 0, error)
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
        """Return the next number to read: one that a replica will be asked for, within the budget."""
        begun = len(self._under_way)
        if (self._ready or begun) and (
            self._held_bytes + (begun + 1) * self._largest_bytes > self._budget_bytes
        ):
            return None
        coming = [forecast.upcoming(self._tuning.depth) for forecast in self._forecasts]
        for turn in range(max(map(len, coming), default=0)):
            for numbers in coming:
                if turn < len(numbers) and not (
                    numbers[turn] in self._ready or numbers[turn] in self._under_way
                ):
                    return numbers[turn]
        return None
