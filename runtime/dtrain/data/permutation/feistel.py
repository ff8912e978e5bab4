"""A permutation of 0..n-1 that is computed from a seed, index by index, without memory.

A Feistel network of six rounds permutes the smallest domain of 2^(2h) numbers that holds n; an image beyond n
is permuted again until it lies below n (cycle walking), which the cycles of a permutation guarantee. The
domain is smaller than 4n, so that this takes fewer than four passes on average.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, methods 2 and 3.
"""

from collections.abc import Sequence
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
        """Derive the keys of the rounds.

        Args:
            length: n, at least 1.
            entropy: numbers >= 0, as `numpy.random.SeedSequence` takes them.
        """
        self._length = length
        half = (max(2, (length - 1).bit_length()) + 1) // 2
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = np.random.SeedSequence(entropy).generate_state(ROUNDS, np.uint64)

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order; `indices` lie below the length."""
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
    """Return a hash of each word, modulo 2^64."""
    mixed = (words + key) * _MULTIPLIERS[0]
    mixed ^= mixed >> _HALF_WORD
    mixed *= _MULTIPLIERS[1]
    mixed ^= mixed >> _HALF_WORD
    return mixed
