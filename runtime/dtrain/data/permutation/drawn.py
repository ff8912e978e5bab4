"""Orders of rows as steps of a pipeline ask for them: a few in a row, or one alone."""

from typing import Protocol

import numpy as np

from dtrain.data.permutation.feistel import Numbers

ARRAY_ROWS_MAX = 1 << 16
"""Rows whose whole order is drawn at once; that of more rows is computed piece by piece."""
PIECE_ROWS = 4096
"""Rows of a piece: computing few takes nearly as long as computing so many, about 1 ms."""
PIECES_KEPT = 4


class Order(Protocol):
    """The numbers of rows in the order in which they come."""

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order."""

    def row(self, index: int) -> int:
        """Return the number at one place."""


class Computed(Protocol):
    """An order that is computed, better many places at a time."""

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order."""


class Listing:
    """An order that is all in memory."""

    def __init__(self, order: Numbers) -> None:
        self._order = order

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order."""
        return self._order[indices]

    def row(self, index: int) -> int:
        """Return the number at one place."""
        return int(self._order[index])


class Ahead:
    """An order that is computed a piece at a time; the newest pieces are kept.

    Several threads may ask at once: at worst two of them compute the same piece.
    """

    def __init__(self, order: Computed, length: int) -> None:
        self._order = order
        self._length = length
        self._kept: tuple[tuple[int, Numbers], ...] = ()

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers at some places of the order."""
        if not len(indices):
            return indices
        first, last = (int(end) // PIECE_ROWS for end in (indices.min(), indices.max()))
        if last - first > 1:
            return self._order.at(indices)
        pieces = np.concatenate([self._piece(number) for number in range(first, last + 1)])
        return pieces[indices - first * PIECE_ROWS]

    def row(self, index: int) -> int:
        """Return the number at one place."""
        return int(self._piece(index // PIECE_ROWS)[index % PIECE_ROWS])

    def _piece(self, number: int) -> Numbers:
        for each, piece in self._kept:
            if each == number:
                return piece
        start = number * PIECE_ROWS
        piece = self._order.at(np.arange(start, min(start + PIECE_ROWS, self._length)))
        self._kept = ((number, piece), *self._kept[: PIECES_KEPT - 1])
        return piece
