"""Elements by number, computed by threads before they are asked for."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from dtrain.data.prefetching.forecast import Forecast
from dtrain.data.prefetching.tuning import Tuning

T = TypeVar("T")
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
