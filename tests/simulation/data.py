"""What a simulated run trains on: how many examples the parts of batches have, and what they add to loss and metrics.

Written down by the obvious lines, and not with the code that cuts batches and sums up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from dtrain.messages import Sums

NAMES = ("loss",)
Row = Mapping[str, float]


@dataclass(frozen=True)
class Data:
    """A stream of batches.

    Attributes:
        rows: of every batch but the last one of a pass.
        last_rows: of the last one, at most as many.
        batches: how many a pass has.
        parts: N0.
        even: whether the parts of a batch differ by one row at most.
    """

    rows: int
    last_rows: int
    batches: int
    parts: int
    even: bool

    def size(self, batch: int) -> int:
        """Return how many rows a batch has."""
        return self.last_rows if batch % self.batches == self.batches - 1 else self.rows

    def examples(self, part: int) -> int:
        """Return how many rows the part of this number has."""
        batch, place = divmod(part, self.parts)
        rows = list(range(self.size(batch)))
        if self.even:
            return len(np.array_split(rows, self.parts)[place])
        block = ceil(len(rows) / self.parts)
        return len(rows[place * block : (place + 1) * block])

    def filled(self, batch: int) -> set[int]:
        """Return the parts of a batch that have examples."""
        return {part for part in range(batch * self.parts, (batch + 1) * self.parts) if self.examples(part)}


def sums_of(number: int, examples: int) -> Sums:
    """Return what the gradient of this number brings: whole numbers, whose sums do not depend on the order."""
    return Sums(NAMES, np.array([examples, examples * number, number * number], "<f8").tobytes())


def row_of(sums: Sequence[Sums]) -> Row:
    """Return the numbers of an epoch with these sums."""
    totals = sum((np.frombuffer(each.totals, "<f8") for each in sums), start=np.zeros(3))
    return {"examples": float(totals[0]), "loss": float(totals[1]), "state": float(totals[2])}
