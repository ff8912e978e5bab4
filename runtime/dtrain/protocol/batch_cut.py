"""The cut of a batch into the parts that replicas compute.

The rule *One batch a step* (docs/design/protocol.md#one-batch-a-step) needs:

1. Without backups the parts are blocks of ceil(b / N0) rows, so that the last ones may be smaller, or empty.
2. With backups, where a step may be made of parts of several batches, they differ by one row at most.
3. Parts that have examples come before those that have none.
4. A run with backups that goes on with whole batches deals the parts that are left of begun batches as parts:
   as many of them as a batch had take the place of one batch.

Source: `tf.data`'s rebatching under the autoshard policies AUTO and DATA, for 1.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class BatchCut:
    """The cut of a stream's batches into `parts` (N0); `even`: parts differ by one row at most.

    `rest` is empty, or into how many even parts batches were cut before, followed by the numbers of the parts
    that were left of begun batches then.
    """

    parts: int = 1
    even: bool = False
    rest: tuple[int, ...] = ()

    def rows(self, part: int, size: int) -> range:
        """Return the rows of a part, from 0, of a batch of `size` rows."""
        if self.even:
            return range(_before(part, size, self.parts), _before(part + 1, size, self.parts))
        block = ceil(size / self.parts)
        return range(min(part * block, size), min((part + 1) * block, size))

    def filled(self, size: int) -> int:
        """Return how many parts of a batch of `size` rows have any."""
        return min(size, self.parts) if self.even else ceil(size / max(1, ceil(size / self.parts)))

    def pieces(self, batch: int) -> tuple[int, ...]:
        """Return the parts of begun batches that take the place of a batch; empty if it is one of the stream.

        The place is that of the first one's batch, of which no more parts are left than a batch has.
        """
        for first in range(1, len(self.rest), *self.rest[:1]):
            if self.rest[first] // self.rest[0] == batch:
                return self.rest[first : first + self.rest[0]]
        return ()


UNCUT = BatchCut()


def _before(part: int, size: int, parts: int) -> int:
    """Return the rows before a part: the first `size` mod `parts` of them have one more."""
    return part * (size // parts) + min(part, size % parts)
