"""How far to read ahead, with how many threads, where the program leaves it to dtrain. No thread, no clock.

Source: AUTOTUNE of `tf.data`. Here the wait for input decides: it is to be under 1% of the time.
"""

from dataclasses import dataclass

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
    """Depth and threads of one reader.

    Attributes:
        depth: how many numbers of each replica are read ahead.
        threads: how many threads read.
        deeper: whether `depth` may grow.
        threads_max: how many threads there may be; equal to `threads` where the program says a number.
    """

    depth: int = 2
    threads: int = 1
    deeper: bool = False
    threads_max: int = 1

    def __post_init__(self) -> None:
        """Begin the first window."""
        self._count = 0
        self._waited_s = 0.0
        self._elapsed_s = 0.0
        self._before: float | None = None

    def note(self, waited_s: float, elapsed_s: float) -> None:
        """Take the wait for one batch, and the time since the one before; decide after some of them."""
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

    def fit_into(self, budget_bytes: int, each_bytes: int) -> None:
        """Read less far ahead where so many batches of this size would not fit."""
        if each_bytes * self.depth > budget_bytes:
            self.depth = max(1, budget_bytes // each_bytes)
