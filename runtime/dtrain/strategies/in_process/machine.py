"""The steps that the replicas of one process make together. Machine.

It says which part each computes, and what makes a version.
The rules are those of synchronous training on parameter servers (`protocol.sync_round`), with one server and
replicas that live as long as the process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dtrain.config import SynchronousSection
from dtrain.messages import Sums
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.sync_round import Contribution, SyncDecision
from dtrain.types import Array

SERVER = 0


class Given(msgspec.Struct, eq=False):
    """The contribution of one replica: a gradient as a store takes it, the mean of its examples."""

    part: int
    blocks: Sequence[Array]
    examples: int
    sums: Sums | None
    loss: float


class NextStep(msgspec.Struct, frozen=True):
    """The contributions to the next version, and the divisor: their number, and that of empty parts."""

    given: Sequence[Given]
    parts: int


@dataclass
class SharedSteps:
    """The steps of one call of `fit`; `turns` counts batches and versions, for what waits to poll."""

    dealer: PartDealer
    section: SynchronousSection
    replicas: int
    version: int
    max_steps: int
    turns: int = 0
    _given: dict[Contribution, Given] = field(default_factory=dict, init=False)
    _turn: frozenset[int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._retry = self.section.repeats_late
        self._live = frozenset(range(self.replicas))
        self._decision = SyncDecision(
            self.version, 1, self.dealer.parts, self.replicas, self.dealer.whole, live=self._live
        )
        self._begin_batch()

    def _begin_batch(self) -> None:
        self.turns += 1
        dealer = self.dealer
        if not dealer.whole:
            return
        self._decision.begin(dealer.begin_batch())
        if self.replicas > dealer.parts:  # a run that began with fewer replicas: each has its turn
            first = dealer.batch * dealer.parts
            self._turn = frozenset(number % self.replicas for number in range(first, first + dealer.parts))

    @property
    def meets(self) -> bool:
        """Whether all parts of a step are computed at the same time, each by another replica."""
        return self.dealer.whole and self.dealer.parts <= self.replicas

    def permit(self, rank: int) -> int:
        """Return the part that a replica is to compute now; NO_PART if there is none for it in this step.

        The last steps wait for a part that came too late and is computed again: no part of a pass that is
        never made takes its place.
        """
        dealer, turn = self.dealer, self._turn
        if self.version >= self.max_steps:
            return NO_PART
        if rank not in dealer.current and not (
            len(dealer.parts_of[rank]) < self._decision.quota and (turn is None or rank in turn)
        ):
            return NO_PART
        fresh = not self._retry or dealer.outstanding < (self.max_steps - self.version) * dealer.parts
        return dealer.give(rank, self._live if turn is None else turn, fresh=fresh)

    def late(self, rank: int, part: int) -> None:
        """Note a gradient of an earlier version, which is void."""
        self.dealer.pushed(rank, part)
        self._void(part)

    def _void(self, part: int) -> None:
        if not self.dealer.whole:
            self.dealer.late(part, again=self._retry)

    def offer(self, rank: int, given: Given) -> None:
        """Note a gradient of the newest version."""
        self.dealer.pushed(rank, given.part)
        contribution = rank, 0, sum(known == rank for known, _, _ in self._given)
        self._given[contribution] = given
        self._decision.offer(contribution, given.part)
        self._decision.report(SERVER, contribution, self.version)

    def leave_empty(self, rank: int, part: int, empty: int) -> None:
        """Note a part without examples; of its batch the last `empty` parts have none either."""
        dealer = self.dealer
        dealer.pushed(rank, part)
        if not dealer.whole:
            dealer.settle(part)
            return
        end = part // dealer.parts * dealer.parts + dealer.parts
        for each in [each for each in self._decision.open if each == part or end - empty <= each < end]:
            self._decision.settle(each, empty=True)
            dealer.hold(each)

    def refuse(self, rank: int, part: int) -> None:
        """Note a part whose gradient is not finite: it makes no step."""
        dealer = self.dealer
        dealer.pushed(rank, part)
        if dealer.whole:
            dealer.hold(part)
            self._decision.settle(part, empty=False)
        else:
            dealer.settle(part)

    def decided(self) -> NextStep | None:
        """Return the next version's contents when there are enough; a batch of nothing is passed over."""
        if self._decision.all_refused:
            self._begin_batch()
            return None
        decided = self._decision.decided()
        if decided is None or self.version >= self.max_steps:
            return None
        return NextStep([self._given[each] for each in decided.contributors], decided.parts)

    def made(self, step: NextStep) -> None:
        """Go on with the next version, once this one is made."""
        counted = {given.part for given in step.given}
        if not self.dealer.whole:
            for given in self._given.values():
                if given.part in counted:
                    self.dealer.settle(given.part)
                else:
                    self._void(given.part)
        self._given.clear()
        self.version += 1
        self._decision.committed()
        self._begin_batch()
