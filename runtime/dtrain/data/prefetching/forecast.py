"""The numbers that a replica will be asked for next. No thread, no clock.

The dealer gives a replica the numbers of its own lanes, in order (docs/design/protocol.md#lanes), or the part
of each batch that has its rank; others only where it helps, or takes over from a lost one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice, takewhile

REMEMBERED = 16
"""Numbers over which a forecast is judged."""
WORTHLESS = 0.25
"""A forecast that was right less often is not worth the reading."""


@dataclass
class Forecast:
    """One replica's forecast.

    Attributes:
        owned_from: yields the numbers of the replica's own lanes from a number on, ascending.
        end: no number from here on will be asked for; None where there is no end.
    """

    owned_from: Callable[[int], Iterator[int]] = count
    end: int | None = None

    def __post_init__(self) -> None:
        """Begin without a number that was asked for."""
        self._next: int | None = None
        self._right = 1.0

    def asked(self, number: int) -> None:
        """Take the number that the replica was asked for.

        One of its own lanes moves the forecast behind it, also back. One of another's leaves it as it is.
        """
        if self._next is not None:
            hit = float(number == next(self._from(self._next), None))
            self._right += (hit - self._right) / REMEMBERED
        if self._next is None or self._owns(number):
            self._next = number + 1

    def upcoming(self, limit: int) -> list[int]:
        """Return the next `limit` numbers, or fewer at the end; none before the first was asked for, and
        where the forecast is worth nothing.
        """
        if self._next is None or self._right < WORTHLESS:
            return []
        return list(islice(self._from(self._next), limit))

    def awaits(self, number: int) -> bool:
        """Return whether the replica may still be asked for a number of its own lanes."""
        return self._next is not None and number >= self._next and self._owns(number)

    def _owns(self, number: int) -> bool:
        return next(self.owned_from(number), None) == number

    def _from(self, first: int) -> Iterator[int]:
        return takewhile(lambda number: self.end is None or number < self.end, self.owned_from(first))
