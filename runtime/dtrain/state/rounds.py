"""Rounds of local steps: which batches of a call of `fit` make which round.

The rule *Rounds* (docs/design/protocol.md#rounds): in local steps a version is a round. A replica makes H
steps of the compiled optimizer on its own copy of the variables, each on its part of the next batch, and
contributes once. A round has H batches; the last one of an epoch has those that are left, so that epochs end
with rounds.
"""

from math import ceil

import msgspec


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

    def parts(self, number: int, parts: int) -> list[int]:
        """Return the numbers of the parts of batches that a dealt part has: part `number % parts` of each
        batch of round `number // parts`.
        """
        round_number, part = divmod(number, parts)
        return [batch * parts + part for batch in self.batches(round_number)]

    def steps_before(self, number: int) -> int:
        """Return how many local steps a replica has made when this round begins."""
        return self.batches(number).start
