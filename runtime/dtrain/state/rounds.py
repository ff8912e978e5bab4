"""Rounds of local steps: which batches of a call of `fit` make which round.

The rule *Rounds* (docs/design/protocol.md#rounds): in local steps a version is a round. A replica makes H
steps of the compiled optimizer on its own copy of the variables, each on its part of the next batch, and
contributes once. A round has H batches; the last one of an epoch has those that are left, so that epochs end
with rounds.
"""

from collections.abc import Mapping, Sequence
from math import ceil

import msgspec

FASTEST = 1000
"""The speed of the fastest replica, beside which those of the others are whole numbers."""


def speeds_of(step_s: Mapping[int, float], parts: int) -> tuple[int, ...]:
    """Return the speed of the replica to which each part of a batch belongs, part 0 first.

    Args:
        step_s: the seconds that a local step takes, by rank; one of which nothing is known is as fast as the
            mean.
    """
    known = [1 / seconds for seconds in step_s.values()] or [1.0]
    speeds = [1 / step_s[rank] if rank in step_s else sum(known) / len(known) for rank in range(parts)]
    return tuple(max(1, round(FASTEST * speed / max(speeds))) for speed in speeds)


class Rounds(msgspec.Struct, frozen=True):
    """The rounds of one call of `fit`, numbered from 0, as its batches are.

    Attributes:
        local_steps: H, in batches.
        steps_per_epoch: how many batches an epoch has.
    """

    local_steps: int
    steps_per_epoch: int

    @property
    def per_epoch(self) -> int:
        """The number of rounds in an epoch."""
        return ceil(self.steps_per_epoch / self.local_steps)

    def batches(self, number: int) -> range:
        """Return the batches of a round, by their numbers: H of them, or those that its epoch has left."""
        epoch, within = divmod(number, self.per_epoch)
        first = epoch * self.steps_per_epoch + within * self.local_steps
        return range(first, min(first + self.local_steps, (epoch + 1) * self.steps_per_epoch))

    def parts(self, number: int, parts: int, speeds: Sequence[int] = ()) -> Sequence[int]:
        """Return the numbers of the parts of batches that a dealt part has: part `number % parts` of each
        batch of round `number // parts`; with `speeds` so many neighbours of them all as go with the speed of
        that part's replica, and one at least.
        """
        round_number, part = divmod(number, parts)
        batches = self.batches(round_number)
        if not speeds:
            return [batch * parts + part for batch in batches]
        every = range(batches.start * parts, batches.stop * parts)
        start, stop = (
            place + round((len(every) - parts) * sum(speeds[:place]) / sum(speeds))
            for place in (part, part + 1)
        )
        return every[start:stop]

    def steps_before(self, number: int) -> int:
        """Return how many local steps a replica has made when this round begins."""
        return self.batches(number).start
