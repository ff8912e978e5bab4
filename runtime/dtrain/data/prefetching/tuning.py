"""The rules of reading ahead: what comes next, how far, with how many threads, in how much memory.

Source: AUTOTUNE of `tf.data`. Here the wait for input decides: it is to be under 1% of the time. No thread,
no clock.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count, islice, takewhile
from typing import Any

import numpy as np

from dtrain.cluster.hosts import host_of
from dtrain.errors import DtrainError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.resources import own_memory_bytes

AUTOTUNE = -1
"""Stands for a number of batches or threads that is chosen while training runs."""

WINDOW = 8
"""Batches between two decisions."""
WAITS = 0.01
"""The share of the time above which the wait for input is too long."""
DEPTH_MAX = 64
GAIN = 0.9
"""A further thread has to bring the wait below so much of what it was."""


@dataclass
class Tuning:
    """Depth, threads and memory of one reader.

    Attributes:
        depth: how many numbers of each replica are read ahead.
        deeper: whether `depth` may grow.
        threads_max: equal to `threads` where the program says a number.
        budget_bytes: of all that is read ahead; one element is read ahead whatever its size.
    """

    depth: int = 2
    threads: int = 1
    deeper: bool = False
    threads_max: int = 1
    budget_bytes: int = sys.maxsize

    def __post_init__(self) -> None:
        self._count = 0
        self._waited_s = 0.0
        self._elapsed_s = 0.0
        self._before: float | None = None

    def note(self, waited_s: float, elapsed_s: float) -> None:
        self._count += 1
        self._waited_s += waited_s
        self._elapsed_s += elapsed_s
        if self._count < WINDOW or self._elapsed_s <= 0.0:
            return
        share = self._waited_s / self._elapsed_s
        self._count, self._waited_s, self._elapsed_s = 0, 0.0, 0.0
        if self._before is not None and share > self._before * GAIN:
            self.threads = self.threads_max = self.threads - 1  # the last thread was in vain
            self._before = None
        elif share > WAITS and self.threads < self.threads_max:
            self._before = share
            self.threads += 1
        else:
            self._before = None
        if share > WAITS and self.deeper:
            self.depth = min(DEPTH_MAX, max(self.depth * 2, 2 * self.threads))

    def fit_into_budget(self, each_bytes: int) -> None:
        if each_bytes * self.depth > self.budget_bytes:
            self.depth = max(1, self.budget_bytes // each_bytes)


REMEMBERED = 16
"""Numbers over which a forecast is judged."""
WORTHLESS = 0.25
"""A forecast that was right less often is not worth the reading."""


@dataclass
class Forecast:
    """One replica's forecast: the numbers below `end` that `owned_from` yields from one on, ascending."""

    owned_from: Callable[[int], Iterator[int]] = count
    end: int | None = None

    def __post_init__(self) -> None:
        self._next: int | None = None
        self._right = 1.0

    def asked(self, number: int) -> None:
        """Note a number; one of the replica's own lanes moves the forecast behind it, also back."""
        if self._next is not None:
            hit = float(number == next(self._from(self._next), None))
            self._right += (hit - self._right) / REMEMBERED
        if self._next is None or self._owns(number):
            self._next = number + 1

    def upcoming(self, limit: int) -> list[int]:
        """Return the next `limit` numbers; none while the forecast is worth nothing."""
        if self._next is None or self._right < WORTHLESS:
            return []
        return list(islice(self._from(self._next), limit))

    def awaits(self, number: int) -> bool:
        return self._next is not None and number >= self._next and self._owns(number)

    def _owns(self, number: int) -> bool:
        return next(self.owned_from(number), None) == number

    def _from(self, first: int) -> Iterator[int]:
        return takewhile(lambda number: self.end is None or number < self.end, self.owned_from(first))


SHARE = 8
"""One part in so many of the memory is for batches that were read ahead."""


@cache
def default_budget_bytes() -> int:
    """Return 1/8 of this process's memory, shared among the tasks of its run on this host."""
    return own_memory_bytes() // SHARE // tasks_here(os.environ)


def tasks_here(environment: Mapping[str, str]) -> int:
    try:
        assignment = TaskAssignment.from_environment(environment)
    except (DtrainError, OSError):
        return 1  # what is wrong is said where the strategy is made
    if assignment is None:
        return 1
    cluster = assignment.cluster
    own = assignment.task if assignment.task in cluster else cluster.leader
    if own is None:
        return 1
    host = host_of(cluster.address(own))
    return max(1, sum(host_of(cluster.address(task)) == host for task in cluster.tasks()))


def size_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes + (sum(map(size_bytes, value.flat)) if value.dtype == object else 0)
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_bytes, value))
    return int(getattr(value, "nbytes", 0))
