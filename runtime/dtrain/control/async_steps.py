"""The host's part in asynchronous training: who may push which batch next, and what has to be pushed again.
Machine.

It joins the tickets (docs/design/protocol.md#asynchronous-updates), the dealer of batches, the repairs
(docs/design/protocol.md#exactly-once) and the sums of loss and metrics.
"""

from collections.abc import Callable, Collection, Hashable, Set
from dataclasses import dataclass, field

from dtrain.control.interface import Action, NextTurn
from dtrain.messages import Push, Refusal, RefusalKind, Verdict
from dtrain.protocol.async_updates import Repairs, TicketGate
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.tally import Tally
from dtrain.state.fit_state import Open

REPEATS = 3


@dataclass(kw_only=True)
class AsyncSteps:
    """The steps of one term.

    Attributes:
        alone: whether the replica of rank 0 makes every step.
        retry: whether a batch whose gradient was too stale is to be computed again.
        too_few_timeout_s: how long the run may be without a replica that could make the next version.
        live: the ranks that may have tickets; the ticket of one that is lost would never come back.
        torn: whether the servers may contain different batches when the term begins.
        halved: a batch that cannot be brought to all servers, because its gradient was not finite again and
            again: they have to go back to a checkpoint. None: there is none.
    """

    gate: TicketGate
    dealer: PartDealer
    tally: Tally
    missing: Callable[[], str]
    repairs: Repairs | None = None
    alone: bool = False
    retry: bool = False
    too_few_timeout_s: float = 0.0
    live: Set[int] = frozenset()
    failed: Refusal | None = None
    max_staleness: int | None = None
    torn: bool = False
    halved: int | None = None
    # The batches of lost replicas, which may have reached other servers, and how often each is computed again
    # if its gradient is not finite now.
    _doubtful: dict[int, int] = field(default_factory=dict, init=False)
    _too_few_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.torn:
            self._doubtful.update(dict.fromkeys(self.dealer.due, REPEATS))

    # How training stands

    @property
    def version(self) -> int:
        return self.gate.accepted

    @property
    def awaits_others(self) -> bool:
        """Whether another server may not have reached the version at which training stands."""
        if self.repairs is None or self.repairs.done:
            return False
        return self.gate.held_back or self.gate.finished

    @property
    def held_back(self) -> bool:
        return self.gate.held_back and not self.awaits_others

    @property
    def too_few(self) -> bool:
        return self._too_few_since_s is not None

    @property
    def fingerprint(self) -> Hashable:
        """All that `permit` depends on beside what each rank has done: while it stays, refusals stay."""
        repairs = self.repairs is not None and bool(self.repairs.due)
        return self.live, self.gate.fingerprint, repairs, self.awaits_others

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Return the ranks for which those without a ticket wait; servers apply gradients on arrival."""
        if self.repairs is not None and self.awaits_others:
            return self.repairs.ranks, ()
        return self.gate.awaited(self.live), ()

    def told_to(self, rank: int) -> Open:
        """Return the sums of the epochs that have not ended, to the leader alone."""
        return self.tally.open() if rank == self.gate.leader else ()

    def next_turn(self, rank: int) -> NextTurn:
        """Deal to a replica what it may push next, and say whether that makes no step."""
        ticket, part = self.permit(rank)
        repairs = self.repairs is not None and rank in self.repairs.given
        return NextTurn(ticket=ticket, part=part, tally=self.told_to(rank), repairs=repairs)

    # What the leader changes

    def hold(self) -> int:
        """Count as under way also what waits to be dealt again and may have reached other servers, and what
        is dealt before it.
        """
        waiting = self.dealer.due | ({self._leaders_batch} - {NO_PART})
        last = max(waiting & self._doubtful.keys(), default=NO_PART)
        return self.gate.hold(sum(batch <= last for batch in waiting))

    @property
    def _leaders_batch(self) -> int:
        """The batch that the leader has a ticket for, and is not pushing while it gives an order."""
        leader = self.gate.leader
        return NO_PART if leader is None else self.dealer.current.get(leader, NO_PART)

    def release(self, until: int | None) -> None:
        self.gate.until = until

    def end_at(self, version: int) -> None:
        """End at `version`: the pushes under way make the last versions.

        The leader's own batch is not dealt again, unless a server may already have it.
        """
        self.gate.end_at(version)
        batch = self._leaders_batch
        if batch in self._doubtful:
            self.dealer.give_back(batch)
        elif batch != NO_PART:
            self.dealer.hold(batch)

    # Pushes

    def admits(self, rank: int, batch: int) -> bool:
        return rank in self.gate.holders and self.dealer.current.get(rank) == batch

    def without_ticket(self, rank: int, batch: int) -> Verdict:
        """Return the verdict on a push that is not admitted: a repair is at the host already."""
        if self.repairs is not None and self.repairs.given.get(rank) == batch:
            return Verdict.ACCEPTED
        return Verdict.FINISHED if self.gate.finished else Verdict.STALE

    def judged(self, rank: int, push: Push, verdict: Verdict, *, new: bool, admitted: bool) -> None:
        gate, batch = self.gate, push.part
        accepted = verdict is Verdict.ACCEPTED
        if new and push.sums is not None:
            self.tally.add(gate.accepted, push.sums)
        if accepted and self.repairs is not None:
            self.repairs.pushed(rank, push.incarnation, push.sequence, batch)
        if admitted:
            gate.settle(rank, new)
            if verdict is Verdict.STALE and self.retry:
                self.dealer.pushed(rank, batch)
                self.dealer.repeat(batch)
            else:
                self.dealer.settle(batch)

    def permit(self, rank: int) -> tuple[bool, int]:
        """Give a repair before a ticket for anything new, also where no step may be made."""
        if rank not in self.live:
            return False, NO_PART
        repairs = self.repairs
        if repairs is not None and (repairs.due or repairs.given):
            # not with a ticket, and in the warm-up rank 0 alone
            may_repair = rank not in self.gate.holders and (
                rank == 0 or not (self.alone or self.gate.warms_up)
            )
            if may_repair and (part := repairs.give(rank)) != NO_PART:
                return True, part
        if not self.gate.request(rank):
            return False, NO_PART
        return True, self.dealer.give(rank, self.live, left=self.gate.left + 1)

    def confirm(self, rank: int, sequence: int) -> None:
        """Note that all servers have answered a replica's pushes up to this one."""
        if self.repairs is not None:
            self.repairs.confirmed(rank, sequence)

    @property
    def settled_below(self) -> int:
        """A number below which every batch is settled, and on every server that is to have it."""
        open_ = [self.dealer.settled_below]
        if self.repairs is not None:
            open_ += [*self.repairs.due, *self.repairs.given.values()]
            open_ += [batch for _, _, batch in self.repairs.unconfirmed.values()]
        return min(open_)

    @property
    def again(self) -> tuple[int, ...]:
        """The batches that are to be computed again, or are being so: no replica is sending them now."""
        repairs = () if self.repairs is None else (*self.repairs.due, *self.repairs.given.values())
        return (*self.dealer.due, *repairs)

    def refused(self, rank: int, part: int) -> NextTurn:
        """Take the ticket back; the replica may ask for another one behind those that wait."""
        if self.admits(rank, part):
            self.gate.settle(rank, accepted=False)
            if part in self._doubtful:
                self._try_again(part)
                self.dealer.give_back(part)
            else:
                self.dealer.settle(part)
        if self.repairs is not None and self.repairs.given.get(rank) == part:
            self._try_again(part)
            self.repairs.give_back(rank)
        return NextTurn(ticket=False, tally=self.told_to(rank))

    def _try_again(self, part: int) -> None:
        """Note that a batch that some servers may have was refused by all that lack it."""
        left = self._doubtful[part] = self._doubtful.get(part, REPEATS) - 1
        if left < 0:
            self.halved = part

    # Members and time

    def members_changed(self, live: Set[int], anew: Collection[int], now: float) -> list[Action]:
        for rank in sorted((self.gate.holders | self.gate.clocks.keys()) - live):
            self.gate.leave(rank)
        for rank in sorted((self.live - live) | set(anew)):
            self.gate.holders.discard(rank)
            if self.repairs is not None and self.max_staleness is None:  # else the host has them first
                self._doubtful.update(dict.fromkeys(self.dealer.parts_of[rank], REPEATS))
            self.dealer.lose(rank)
            if self.repairs is not None:
                self.repairs.lose(rank)
        self.live = live
        return []

    def share_out(self, now: float) -> list[Action]:
        return []

    def judge(self, now: float) -> list[Action]:
        resting = (self.gate.finished and not self.awaits_others) or self.held_back
        if resting or self.gate.possible(self.live):
            self._too_few_since_s = None
            return []
        self._too_few_since_s = now if self._too_few_since_s is None else self._too_few_since_s
        waited_s = now - self._too_few_since_s
        if waited_s >= self.too_few_timeout_s:
            waited = f"no live replica could make version {self.version + 1} for {waited_s:.1f} s"
            self.failed = Refusal(
                reason=f"too few replicas: {waited}: {self.missing()}", kind=RefusalKind.TOO_FEW_REPLICAS
            )
        return []
