"""The cut of batches into the parts that replicas compute, and which of them a call of `fit` has dealt.

The rule *One batch a step* (docs/design/protocol.md#one-batch-a-step) needs:

1. Without backups the parts are blocks of ceil(b / N0) rows, so that the last ones may be smaller, or empty.
2. With backups, where a step may be made of parts of several batches, they differ by one row at most.
3. Parts that have examples come before those that have none.
4. A run with backups that goes on with whole batches deals the parts that are left of begun batches as parts:
   as many of them as a batch had take the place of one batch.

Source: `tf.data`'s rebatching under the autoshard policies AUTO and DATA, for 1.
"""

from itertools import chain
from math import ceil
from typing import NamedTuple

import msgspec


class BatchCut(msgspec.Struct, frozen=True):
    """The cut of a stream's batches into `parts` (N0); `even`: parts differ by one row at most.

    `rest` is empty, or into how many even parts batches were cut before, followed by the numbers of the parts
    that were left of begun batches then. `speeds` says how the present round of local steps is shared, if not
    evenly; see `state.rounds`.
    """

    parts: int = 1
    even: bool = False
    rest: tuple[int, ...] = ()
    speeds: tuple[int, ...] = ()

    def rows(self, part: int, size: int) -> range:
        if self.even:
            return range(_before(part, size, self.parts), _before(part + 1, size, self.parts))
        block = ceil(size / self.parts)
        return range(min(part * block, size), min((part + 1) * block, size))

    def filled(self, size: int) -> int:
        return min(size, self.parts) if self.even else ceil(size / max(1, ceil(size / self.parts)))

    def pieces(self, batch: int) -> tuple[int, ...]:
        """Return the parts of begun batches that take the place of a batch; empty if it is one of the
        stream. The place is that of the first one's batch.
        """
        for first in range(1, len(self.rest), *self.rest[:1]):
            if self.rest[first] // self.rest[0] == batch:
                return self.rest[first : first + self.rest[0]]
        return ()


UNCUT = BatchCut()
MISSING_MAX = 1 << 20
"""The limit of missing batches. The number of each takes memory until the next checkpoint."""


def _before(part: int, size: int, parts: int) -> int:
    return part * (size // parts) + min(part, size % parts)


class Dealt(NamedTuple):
    """A dealer's state in a checkpoint.

    Attributes:
        parts: into how many each batch is cut; 0 where nothing was dealt yet.
        due: the parts before `next` that are not settled, ascending.
        even: how batches are cut, as in `BatchCut`: with backups parts are even, and a step is made of any
            of them; else of all parts of one batch.
    """

    parts: int = 0
    next: int = 0
    due: tuple[int, ...] = ()
    even: bool = False
    rest: tuple[int, ...] = ()

    def cut_into(self, parts: int, *, even: bool = False) -> "Dealt":
        """Return the rest with batches cut into other parts; a batch that was begun starts anew."""
        if self.parts in (0, parts):
            return Dealt(parts, self.next, self.due, even, self.rest)
        left = {part // self.parts for part in self.due}
        begun = -(-self.next // self.parts)
        left |= {self.next // self.parts} if self.next % self.parts else set()
        due = tuple(batch * parts + part for batch in sorted(left) for part in range(parts))
        return Dealt(parts, begun * parts, due, even, self.rest)

    def going_on(self, cut: BatchCut, *, sync: bool) -> "Dealt":
        """Return the state with which a training goes on that would cut batches in this way if it began now.

        In synchronous training it stays as it is, with any number of replicas and backups: some parts of a
        batch may be settled already. Whole batches are cut, unless they are to stay whole. Otherwise each
        step is of one batch, and the parts that are left of begun batches are put together to whole ones.
        """
        if sync:
            before = self._in_parts()
            stays = before.parts > 1 or before.parts == cut.parts
            return before if stays else before.cut_into(cut.parts, even=cut.even)
        if not self.even or self.parts <= 1:
            return self.cut_into(cut.parts, even=cut.even)
        begun = -(-self.next // self.parts)
        left = sorted({*self.due, *range(self.next, begun * self.parts)})
        places = tuple(first // self.parts for first in left[:: self.parts])
        return Dealt(1, begun, places, rest=(self.parts, *left)).cut_into(cut.parts, even=cut.even)

    @property
    def cut(self) -> BatchCut:
        return BatchCut(self.parts, self.even, self.rest)

    def _in_parts(self) -> "Dealt":
        """Return the same state with the former cut, if parts of it that were put together are still due."""
        cut = BatchCut(rest=self.rest)
        if self.parts > 1 or not any(map(cut.pieces, self.due)):
            return self
        parts = self.rest[0]
        due = [cut.pieces(batch) or range(batch * parts, (batch + 1) * parts) for batch in self.due]
        return Dealt(parts, self.next * parts, tuple(sorted(chain(*due))), even=True)


NOTHING_DEALT = Dealt()
