"""ps:0's part of synchronous training: which part each replica computes, and what makes the next step. Rules
2 and 10. Machine.

It joins the dealer of parts, the decision and the sums of loss and metrics; `sync_pushes` answers the
replicas.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from dtrain.messages import Push
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.sync_round import Contribution, Decided, SyncDecision
from dtrain.protocol.tally import Tally


@dataclass
class SyncStep:
    """The step that is being made.

    Attributes:
        dealer, decision: of the same parts.
        tally: sums up what counts.
        retry: whether a part that came too late is computed again.
        ranks: the only replicas that are dealt parts; None: all.
        shared_out: how often parts may have become free since the term began, other than by a new version.
        turn: where more replicas live than a batch has parts, those that compute one of this batch; None:
            all.
    """

    dealer: PartDealer
    decision: SyncDecision
    tally: Tally
    retry: bool
    ranks: Set[int] | None = None
    shared_out: int = 0
    turn: Set[int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin the first batch."""
        self._begin_batch()

    def _begin_batch(self) -> None:
        if self.dealer.whole:
            self.decision.begin(self.dealer.begin_batch())
            self._take_turns()

    def _take_turns(self) -> None:
        """After a join, or a resume with more replicas, everyone computes a part of as many batches as any
        other.
        """
        live, parts, batch = self.decision.live, self.dealer.parts, self.dealer.batch
        self.turn = None
        if self.dealer.whole and len(live) > parts:
            ranks = sorted(live)
            self.turn = {ranks[number % len(ranks)] for number in range(batch * parts, (batch + 1) * parts)}

    def permit(self, rank: int, steps_left: int) -> int:
        """Return the part that a replica is to compute next; NO_PART if it has to wait for the next version.

        Where a part that came too late is computed again, the last of the `steps_left` wait for it: no part
        of a pass that is never made takes its place.
        """
        dealer, decision = self.dealer, self.decision
        fresh = not self.retry or dealer.outstanding < steps_left * dealer.parts
        more = len(dealer.parts_of[rank]) < decision.quota and (self.turn is None or rank in self.turn)
        may = rank in decision.live and (rank in dealer.current or more)
        return (
            dealer.give(rank, decision.live if self.turn is None else self.turn, fresh=fresh)
            if may
            else NO_PART
        )

    def may_have_another(self, rank: int) -> bool:
        """Return whether there may be a part for a replica that has pushed one: else `permit` need not be
        asked.
        """
        return not self.dealer.whole or bool(self.dealer.due) or rank in self.dealer.current

    def awaited(self) -> tuple[Collection[int], list[int]]:
        """Return the live ranks that owe a contribution to this version, and the servers that lack one which
        ps:0 holds.
        """
        ranks, servers = self.decision.awaited()
        return ranks if self.turn is None else [rank for rank in ranks if rank in self.turn], servers

    def offered(self, contribution: Contribution, push: Push) -> bool:
        """Note a part that is held now, or has no examples; return whether another batch is dealt now."""
        dealer, decision = self.dealer, self.decision
        if push.examples:
            decision.offer(contribution, push.part)
            if (
                push.part in dealer.due and contribution[0] in decision.live
            ):  # it was thought lost, and need not compute it again
                dealer.hold(push.part, contribution[0])
            self.reported(0, contribution, push.base_version)
        elif not dealer.whole:
            dealer.settle(push.part)
        if dealer.whole and push.empty:
            first = push.part // dealer.parts * dealer.parts
            for part in decision.open.intersection(
                range(first + dealer.parts - push.empty, first + dealer.parts)
            ):
                decision.settle(part, empty=True)
                dealer.hold(part)
        return self._passes_over()

    def reported(self, server: int, contribution: Contribution, version: int) -> None:
        """Note that a server holds a contribution; complete, its part is not computed again, though its
        replica may die.
        """
        part = self.decision.report(server, contribution, version)
        if part is not None and part in self.dealer.due:
            self.dealer.hold(part, contribution[0])

    def refused(self, rank: int, part: int) -> None:
        """Note that the gradient of a part was refused. Where that is true of a whole batch, the next one
        takes its place.
        """
        self.dealer.pushed(rank, part)
        if not self.dealer.whole:
            self.dealer.settle(part)
            return
        if part // self.dealer.parts != self.dealer.batch:
            return  # its batch has made a version without it
        self.dealer.hold(part)
        self.decision.settle(part, empty=False)
        self._passes_over()

    def _passes_over(self) -> bool:
        """Begin the next batch if every gradient of this one was refused; return whether it was so."""
        if not self.decision.all_refused:
            return False
        self._begin_batch()
        return True

    def too_late(self, rank: int, part: int) -> bool:
        """Note that a part came too late; return whether others may compute it now.

        A batch that is dealt whole was settled when its version was made. But a part of the present one may
        have been computed from an earlier version: the replica was told of it in the answer to a push that it
        had repeated.
        """
        if self.dealer.whole:
            comes_back = self.dealer.given.get(part) == rank and part in self.decision.open
            if comes_back:
                self.dealer.give_back(part)
            return comes_back
        if self.retry:
            self.dealer.repeat(part)
        else:
            self.dealer.settle(part)
        return False

    def members_changed(self, live: Set[int], anew: Collection[int]) -> None:
        """Note that these ranks are alive or still expected; of those in `anew` another process has come."""
        live = live if self.ranks is None else live & self.ranks
        for rank in (self.decision.live - live) | set(anew):
            self.dealer.lose(rank, self.decision.complete)
        self.decision.members_changed(live, anew)
        self._take_turns()

    def made(self, decided: Decided, pushes: Mapping[Contribution, Push]) -> None:
        """Go on with the next version: count what makes this one, settle its parts, and begin the next batch.

        Parts of a replica that is lost, or was started again, have been given back before.
        """
        for contribution in decided.contributors:
            self.tally.add(self.decision.version, pushes[contribution].sums)
        if not self.dealer.whole:
            self._settle(decided.contributors, pushes)
        self.decision.committed()
        self._begin_batch()

    def _settle(self, contributors: Iterable[Contribution], pushes: Mapping[Contribution, Push]) -> None:
        counted = set(contributors)
        for contribution, push in pushes.items():
            if contribution in counted:
                self.dealer.settle(push.part)
            elif self.dealer.given.get(push.part) == contribution[0]:
                self.too_late(contribution[0], push.part)
