"""What a simulated run trains on: a stream of batches of examples, how a batch is cut into parts, and what
parts add to loss. In local steps rounds take the place of batches.

Written down by the obvious lines, and not with the code that cuts batches and sums up. Examples are numbered
along the stream, so that the same example has the same number however its batch is cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import ceil, lcm
from typing import Any

import numpy as np

from dtrain.messages import Sums

NAMES = ("loss",)
Row = Mapping[str, float]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Data:
    """A stream of batches.

    Attributes:
        rows: of every batch but the last one of a pass.
        last_rows: of the last one, at most as many.
        batches: how many a pass has.
    """

    rows: int
    last_rows: int
    batches: int

    def size(self, batch: int) -> int:
        """Return how many rows a batch has."""
        return self.last_rows if batch % self.batches == self.batches - 1 else self.rows

    def first(self, batch: int) -> int:
        """Return the number of a batch's first row in the stream; also: how many rows all batches before it
        have.
        """
        passes, place = divmod(batch, self.batches)
        return passes * ((self.batches - 1) * self.rows + self.last_rows) + place * self.rows

    def batch_of(self, row: int) -> int:
        """Return the batch of a row of the stream."""
        rows = (self.batches - 1) * self.rows + self.last_rows
        return row // rows * self.batches + min(row % rows // self.rows, self.batches - 1)


@dataclass(frozen=True)
class RoundsOfData:
    """The same stream in rounds of local steps, which stand where batches do.

    Attributes:
        length: H, in batches.
        epoch_batches: how many batches an epoch has; its last round has those that are left.
    """

    data: Data
    length: int
    epoch_batches: int

    def batches_in(self, number: int) -> range:
        """Return the batches of a round."""
        epoch, place = divmod(number, ceil(self.epoch_batches / self.length))
        first, end = epoch * self.epoch_batches, (epoch + 1) * self.epoch_batches
        return range(first + place * self.length, min(first + (place + 1) * self.length, end))

    def size(self, number: int) -> int:
        """Return how many rows a round has."""
        return sum(map(self.data.size, self.batches_in(number)))

    def first(self, number: int) -> int:
        """Return the number of a round's first row in the stream."""
        return self.data.first(self.batches_in(number).start)

    def batch_of(self, row: int) -> int:
        """Return the round of a row of the stream."""
        epoch, within = divmod(self.data.batch_of(row), self.epoch_batches)
        return epoch * ceil(self.epoch_batches / self.length) + within // self.length

    @property
    def batches(self) -> int:
        """After so many rounds their sizes repeat."""
        epochs = lcm(self.epoch_batches, self.data.batches) // self.epoch_batches
        return epochs * ceil(self.epoch_batches / self.length)

    @property
    def rows(self) -> int:
        """The size of the largest round."""
        return max(map(self.size, range(self.batches)))

    @property
    def last_rows(self) -> int:
        """The size of the smallest one."""
        return min(map(self.size, range(self.batches)))


@dataclass(frozen=True)
class Cut:
    """How the batches of a stream are cut into parts.

    Attributes:
        parts: N0.
        even: whether the parts of a batch differ by one row at most.
        speeds: where replicas share rounds by speed, what was said of it, by round; else None.
    """

    data: Data | RoundsOfData
    parts: int
    even: bool
    speeds: dict[int, Sequence[int]] | None = field(default=None, compare=False)

    def is_known(self, part: int) -> bool:
        """Whether it was said what the part has."""
        return self.speeds is None or part // self.parts in self.speeds

    def rows(self, part: int) -> Sequence[int]:
        """Return the numbers of the rows that the part of this number has."""
        known = self._known.get(part) if self.is_known(part) else None
        if known is None:
            known = _rows(self, part)
            if self.is_known(part):
                self._known[part] = known
        return known

    def steps(self, part: int) -> list[tuple[int, Sequence[int]]]:
        """Return the numbers and the rows of the parts of batches that a part is made of, in their order."""
        if isinstance(self.data, Data):
            return [(part, self.rows(part))]
        number, place = divmod(part, self.parts)
        of_batches = Cut(self.data.data, self.parts, self.even)
        batches = self.data.batches_in(number)
        if self.speeds is None:
            parts = [batch * self.parts + place for batch in batches]
        else:  # all parts of the round, one after the other: one for each replica, and the others by speed
            every = [batch * self.parts + each for batch in batches for each in range(self.parts)]
            speeds = self.speeds.get(number, [1] * self.parts)
            more = [
                round((len(every) - self.parts) * sum(speeds[:n]) / sum(speeds)) for n in (place, place + 1)
            ]
            parts = every[place + more[0] : place + 1 + more[1]]
        return [(each, of_batches.rows(each)) for each in parts]

    @cached_property
    def _known(self) -> dict[int, Sequence[int]]:
        return _known(self) if self.speeds is None else {}

    def empty(self, part: int) -> int:
        """Return how many parts of the batch of a part have no rows."""
        batch = part // self.parts
        return sum(not self.rows(each) for each in range(batch * self.parts, (batch + 1) * self.parts))

    @cached_property
    def most(self) -> int:
        """The size of the largest part."""
        return max(len(self.rows(part)) for part in range(self.data.batches * self.parts))

    @cached_property
    def least(self) -> int:
        """The size of the smallest part that has any rows."""
        ends = range(self.data.batches * self.parts)
        return min(len(rows) for part in ends if (rows := self.rows(part)))


@cache
def _known(cut: Cut) -> dict[int, Sequence[int]]:
    return {}


def _rows(cut: Cut, part: int) -> Sequence[int]:
    if isinstance(cut.data, RoundsOfData):
        return [row for _, rows in cut.steps(part) for row in rows]
    batch, place = divmod(part, cut.parts)
    first, size = cut.data.first(batch), cut.data.size(batch)
    if cut.even:
        least, longer = divmod(size, cut.parts)
        start = first + place * least + min(place, longer)
        return range(start, start + least + (place < longer))
    block = ceil(size / cut.parts)
    return range(first + min(size, place * block), first + min(size, (place + 1) * block))


@cache
def batches_of(data: Data | RoundsOfData, rows: int) -> Array:
    """Return the batch of each of the first rows of a stream."""
    return np.array([data.batch_of(row) for row in range(rows)])


@cache
def starts_of(cut: Cut, rows: int) -> Array:
    """Return the first row of each part that has any, of those within the first rows of a stream."""
    parts = map(cut.rows, range(cut.parts * (cut.data.batch_of(rows - 1) + 1)))
    return np.array([mine[0] for mine in parts if mine and mine[0] < rows])


def sums_of(rows: Sequence[int]) -> Sums:
    """Return what these rows bring: whole numbers, whose sums do not depend on the order, nor on how batches
    are cut.
    """
    return Sums(
        names=NAMES, totals=np.array([len(rows), sum(rows), sum(row * row for row in rows)], "<f8").tobytes()
    )


def row_of(sums: Sequence[Sums]) -> Row:
    """Return the numbers of an epoch with these sums."""
    totals = sum((np.frombuffer(each.totals, "<f8") for each in sums), start=np.zeros(3))
    return {"examples": float(totals[0]), "loss": float(totals[1]), "state": float(totals[2])}
