"""Orders of many rows that are computed index by index, so that no array of them is in memory.

A Feistel network of six rounds permutes the smallest domain of 2^(2h) numbers that holds n; an image beyond
n is permuted again until it lies below n (cycle walking), which the cycles of a permutation guarantee. The
domain is smaller than 4n, so that this takes fewer than four passes on average. Source: J. Black, P.
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, methods 2 and 3.

Whole blocks may be shuffled, and rows within a window of blocks. A reader of such an order needs the blocks
of one window at a time, each from its first row to its last: few large reads in the place of one for each
row, which a disk far away asks for. Source of the idea: the `py1e` shuffle of MosaicML Streaming.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

ROUNDS = 6
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF_WORD = np.uint64(32)


class Permutation:
    """The numbers below `length` in an order that follows from `entropy`, about 50 bytes in memory."""

    def __init__(self, length: int, entropy: int | Sequence[int]) -> None:
        self._length = length
        half = (max(2, (length - 1).bit_length()) + 1) // 2
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = np.random.SeedSequence(entropy).generate_state(ROUNDS, np.uint64)

    def at(self, indices: Numbers) -> Numbers:
        return self._walked(indices, self._forth)

    def places_of(self, numbers: Numbers) -> Numbers:
        """Return the places at which some numbers stand in the order; the inverse of `at`."""
        return self._walked(numbers, self._back)

    def _walked(self, numbers: Numbers, step: Any) -> Numbers:
        found: Words = step(numbers.astype(np.uint64))
        beyond = np.flatnonzero(found >= self._length)
        while len(beyond):
            again = step(found[beyond])
            found[beyond] = again
            beyond = beyond[again >= self._length]
        return found.astype(np.int64)

    def _forth(self, numbers: Words) -> Words:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right, key) & self._mask)
        return left << self._half | right

    def _back(self, numbers: Words) -> Words:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys[::-1]:
            left, right = right ^ (_mixed(left, key) & self._mask), left
        return left << self._half | right


def _mixed(words: Words, key: np.uint64) -> Words:
    mixed = (words + key) * _MULTIPLIERS[0]
    mixed ^= mixed >> _HALF_WORD
    mixed *= _MULTIPLIERS[1]
    mixed ^= mixed >> _HALF_WORD
    return mixed


WINDOWS_KEPT = 8
"""Windows whose permutations are kept; their rows come one after another."""


class BlockPermutation:
    """The numbers below `length`, block by block in the order of a permutation, mixed within windows."""

    def __init__(self, length: int, block: int, window: int, entropy: Sequence[int]) -> None:
        """`window` is how many rows are mixed with each other; it is rounded up to whole blocks."""
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
        """Return the places that indices would have if the last block had as many rows as the others."""
        return indices + np.where(indices >= self._short_end, self._missing, 0)

    def _actual(self, boundary: int) -> int:
        """Return the index of the first row of a block, of its place among blocks of the same number."""
        return boundary - (self._missing if boundary > self._short * self._block else 0)


ARRAY_ROWS_MAX = 1 << 16
"""Rows whose whole order is drawn at once; that of more rows is computed piece by piece."""
PIECE_ROWS = 4096
"""Rows of a piece: computing few takes nearly as long as computing so many, about 1 ms."""
PIECES_KEPT = 4


class Listing:
    """An order that is all in memory."""

    def __init__(self, order: Numbers) -> None:
        self._order = order

    def at(self, indices: Numbers) -> Numbers:
        return self._order[indices]

    def row(self, index: int) -> int:
        return int(self._order[index])


class Ahead:
    """An order that is computed a piece at a time; the newest pieces are kept.

    Several threads may ask at once: at worst two of them compute the same piece.
    """

    def __init__(self, order: Permutation | BlockPermutation, length: int) -> None:
        self._order = order
        self._length = length
        self._piece = lru_cache(PIECES_KEPT)(self._computed_piece)

    def at(self, indices: Numbers) -> Numbers:
        if not len(indices):
            return indices
        first, last = (int(end) // PIECE_ROWS for end in (indices.min(), indices.max()))
        if last - first > 1:
            return self._order.at(indices)
        pieces = np.concatenate([self._piece(number) for number in range(first, last + 1)])
        return pieces[indices - first * PIECE_ROWS]

    def row(self, index: int) -> int:
        return int(self._piece(index // PIECE_ROWS)[index % PIECE_ROWS])

    def _computed_piece(self, number: int) -> Numbers:
        start = number * PIECE_ROWS
        return self._order.at(np.arange(start, min(start + PIECE_ROWS, self._length)))
