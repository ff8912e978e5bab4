"""An order in which whole blocks of rows are shuffled, and rows within a window of blocks.

A reader of such an order needs the blocks of one window at a time, each from its first row to its last: few
large reads in the place of one for each row, which a disk far away asks for. Source of the idea: the `py1e`
shuffle of MosaicML Streaming.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dtrain.data.permutation.feistel import Numbers, Permutation

WINDOWS_KEPT = 8
"""Windows whose permutations are kept; their rows come one after another."""


class BlockPermutation:
    """The numbers below `length`, block by block in the order of a permutation, mixed within windows."""

    def __init__(self, length: int, block: int, window: int, entropy: Sequence[int]) -> None:
        """Begin.

        Args:
            length: how many rows there are, at least 1.
            block: how many rows stand beside each other; the last block may have fewer.
            window: how many rows are mixed with each other; is rounded up to whole blocks.
            entropy: numbers >= 0, from which the order follows.
        """
        self._length = length
        self._block = block
        blocks = -(-length // block)
        self._window_rows = -(-window // block) * block
        self._order = Permutation(blocks, (*entropy, 0))
        # Some place of the order has the block with fewer rows; rows after it come earlier by `_missing`.
        self._missing = blocks * block - length
        self._short = int(self._order.places_of(np.array([blocks - 1]))[0])
        self._short_end = (self._short + 1) * block - self._missing
        self._within = lru_cache(WINDOWS_KEPT)(lambda window, rows: Permutation(rows, (*entropy, 1, window)))

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order; `indices` lie below the length."""
        places = self._as_if_whole(indices)
        windows = places // self._window_rows
        rows = np.empty_like(places)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            first = self._actual(window * self._window_rows)
            end = min(self._actual((window + 1) * self._window_rows), self._length)
            mixed = self._within(window, end - first).at(indices[chosen] - first)
            rows[chosen] = self._as_if_whole(mixed + first)
        return self._order.at(rows // self._block) * self._block + rows % self._block

    def _as_if_whole(self, indices: Numbers) -> Numbers:
        """Return the places that indices would have if all blocks had the same number of rows."""
        return indices + np.where(indices >= self._short_end, self._missing, 0)

    def _actual(self, boundary: int) -> int:
        """Return the index of the first row of a block, of its place among blocks of the same number."""
        return boundary - (self._missing if boundary > self._short * self._block else 0)
