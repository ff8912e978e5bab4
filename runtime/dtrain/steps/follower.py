"""One member as it follows the leader: what it computes, reduces and reports, and when a round is over.

The rules are those of docs/design/steps.md#rounds:

1. A member completes a part before it reports it, and keeps its gradient until the round is over.
2. It has reduced its lanes, and has all records that the attempt names, before it says so. It uses the new
   values only when a later round begins: then every lane was reduced at every host.
3. It begins an attempt only if that is newer than what it has begun, and gives up the earlier one. It gives
   it up, too, before it answers a new leader.
4. It obeys a leader only if the leader's term is at least the newest term that it has answered, and if the
   leader is still a member.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from dtrain.messages.rounds import (
    CompletePart,
    Deal,
    HostStanding,
    Known,
    MemberReport,
    MemberSeat,
    ReduceAttempt,
    RoundMade,
    Told,
)
from dtrain.state.batch_cut import Dealt

_TERM_MEMBERS = 1 << 20
_TERM_ATTEMPTS = 1 << 20


def next_term(newest: int, member: int) -> int:
    """Return the term of a member that begins to lead: above `newest`, and never another member's."""
    return (newest // _TERM_MEMBERS + 1) * _TERM_MEMBERS + member


def leader_of(term: int) -> int:
    """Return the number of the member that leads in a term; for term 0 the first one."""
    return term % _TERM_MEMBERS


def first_attempt(term: int) -> int:
    """Return the number of a leader's first attempt: above all those of earlier terms."""
    return term * _TERM_ATTEMPTS


def may_go_on(members: Collection[int], present: Collection[int], gone: Collection[int], leader: int) -> bool:
    """Return whether the members `present` may go on alone.

    Args:
        members: of the newest membership of which all present members have heard.
        present: those that are heard of, the asking one included.
    """
    there = set(members) & set(present)
    if set(members) <= there | set(gone):
        return True
    return 2 * len(there) > len(members) or (2 * len(there) == len(members) and leader in there)


class ComputeDeals(msgspec.Struct, frozen=True):
    """Compute these parts, those that are new among them, in this order; others are no longer wanted."""

    deals: tuple[Deal, ...]


class Reduce(msgspec.Struct, frozen=True):
    """Give up the attempt that is under way, if any, and reduce the member's lane of this one."""

    round: int
    attempt: ReduceAttempt


class AbandonAttempt(msgspec.Struct, frozen=True):
    """Stop working on the present attempt. A new leader is going to begin another one."""

    attempt: int


class CommitRound(msgspec.Struct, frozen=True):
    """Go on from the values that were made beside those of this round, or from those if it was void."""

    round: int
    made: RoundMade


class SkipRounds(msgspec.Struct, frozen=True):
    """Go on in this round: several were made without this member, which had no lane of them. Their values are
    in the memory of its host, as every host has all lanes.
    """

    round: int
    version: int
    side: int


class HoldRound(msgspec.Struct, frozen=True):
    """Wait with this round for more replicas: so many live; -1: wait no more."""

    round: int
    live: int


class LeaveRun(msgspec.Struct, frozen=True):
    """End: the others go on without this member, and its values are no longer theirs."""


Action = ComputeDeals | Reduce | AbandonAttempt | CommitRound | SkipRounds | HoldRound | LeaveRun


class Follower:
    """One member.

    Attributes:
        members: by number, those of the newest membership that it has heard of.
        new: the members that have not begun yet.
        carrying: returns what makes a round, as the memory of the host says (see `Known`).
        late, late_parts: the members and parts for which all wait, as the leader has told.
    """

    def __init__(self, number: int, known: Known, *, round_: int, term: int, membership: int) -> None:
        """Begin in a round, as the leader of a term has told, or as all members begin."""
        self.number = number
        self.round = round_
        self.term = term
        self.membership = membership
        self.members: Mapping[int, MemberSeat] = {seat.number: seat for seat in known.members}
        self._counted = term, membership  # as the leader of that term has told
        self._known = known
        self._due: tuple[Deal, ...] = ()
        self._complete: dict[int, CompletePart] = {}
        self._late: tuple[Deal, ...] = ()
        self._running: tuple[Deal, ...] = ()
        self.carrying: Callable[[int], RoundMade | None] = lambda round_: None
        self._attempt: ReduceAttempt | None = None
        self._reduced = 0
        self._failed = self._asked = False
        self._blamed = -1
        self._written = -1
        self._held = -1
        self._heard = -1
        self.new: frozenset[int] = frozenset()
        self.late: tuple[int, ...] = ()
        self.late_parts: tuple[int, ...] = ()
        self._report: MemberReport | None = None

    # What it reports

    @property
    def report(self) -> MemberReport:
        """Return the same object until something has changed."""
        if self._report is None:
            self._report = self._made_report()
        return self._report

    def _made_report(self) -> MemberReport:
        attempt = self._attempt
        return MemberReport(
            term=self.term,
            member=self.number,
            membership=self.membership,
            round=self.round,
            computing=tuple(deal for deal in self._due if deal.part not in self._complete),
            complete=tuple(self._complete.values()),
            late=self._late,
            dropped=tuple(deal for deal in self._running if deal not in self._due),
            attempt=-1 if attempt is None else attempt.number,
            reduced=self._reduced if attempt is not None and self._written >= attempt.written else 0,
            failed=self._failed,
            blamed=self._blamed,
            known=self.known if self._asked else None,
        )

    @property
    def known(self) -> Known:
        """Return all that the next leader needs of this member beyond its own work."""
        return msgspec.structs.replace(self._known, carrying=self.carrying(self.round))

    @property
    def dealt(self) -> Dealt:
        """The state of the dealer as this round began."""
        return self._known.dealt

    def told_by(self, standing: HostStanding) -> Told:
        """Return what the leader would have told this member, by what it has written of the round."""
        known = standing.known
        return Told(
            term=max(self.term, standing.term),
            membership=standing.membership,
            number=self._heard + 1 if standing.term <= self.term else -1,
            members=known.members,
            round=standing.round,
            version=known.version,
            side=known.side,
            due=standing.due.get(self.number, ()),
            dealt=known.dealt,
            made=known.made,
            held=-1 if known.begun else max(self._held, 0),
        )

    @property
    def told(self) -> Told:
        """Return the newest membership, to be sent to a process that was removed from it."""
        term, membership = self._counted
        return Told(term=term, membership=membership, members=self._known.members, round=self.round)

    @property
    def to_compute(self) -> list[Deal]:
        """The parts that this member is still to compute."""
        return [deal for deal in self._due if deal.part not in self._complete and deal not in self._late]

    def begins(self, deal: Deal) -> None:
        """Note that this process now writes the gradient of a part, until it is complete or given up."""
        self._running = (*self._running, deal)

    def gives_up(self, deal: Deal) -> None:
        self._running = tuple(each for each in self._running if each != deal)
        self._report = None

    def complete(self, deal: Deal, part: CompletePart, round_: int) -> None:
        """Note that a part is complete, which was computed from the values of this round."""
        self.gives_up(deal)
        if deal not in self._due:
            return
        if round_ == self.round:
            self._complete[deal.part] = part
        else:
            self._late = (*self._late, deal)

    def reduced(self, attempt: int, phases: int = 1) -> None:
        """Note that this member's lanes of an attempt are through so many phases."""
        if self._attempt is not None and attempt == self._attempt.number and not self._failed:
            self._reduced, self._report = phases, None

    def failed(self, attempt: int, blamed: int = -1) -> None:
        """Note that an attempt cannot be finished here, and for which member it waited."""
        if self._attempt is not None and attempt == self._attempt.number and not self._is_through:
            self._failed, self._report = True, None
            self._blamed = blamed

    @property
    def _is_through(self) -> bool:
        """Whether nothing of the attempt is left to do, as far as it was told."""
        return self._attempt is None or self._reduced > self._attempt.last

    def written(self, position: int) -> None:
        self._written, self._report = max(self._written, position), None

    # What it is told

    def heeds(self, told: Told) -> bool:
        """Return whether this leader may direct: none of an earlier term, or that is left behind. One that is
        not known yet may have come with a membership of which this member has not heard.
        """
        return told.term >= self.term and (
            leader_of(told.term) in self.members or self.is_news(told, leader_of(told.term))
        )

    def is_news(self, told: Told, number: int) -> bool:
        """Return whether it tells of a newer membership, in which this member and that of the number are."""
        numbers = {seat.number for seat in told.members}
        return told.membership > self.membership and {self.number, number} <= numbers

    def heard(self, told: Told) -> list[Action]:
        """Follow the leader; return what is to be done, in this order."""
        said = told.term, told.membership
        numbers = {seat.number for seat in told.members}
        if told.round >= 0 and numbers and self.number not in numbers and said >= self._counted:
            return [LeaveRun()]
        if said < (self.term, self.membership) or not self.heeds(told):
            return []
        if told.members:
            self.members = {seat.number: seat for seat in told.members}
            self._known = msgspec.structs.replace(self._known, members=told.members)
        elif told.membership != self.membership:
            return []  # the members come with a message that was overtaken
        if told.term == self.term and told.number <= self._heard:
            return []  # it was overtaken by another one
        self.term, self._heard, self._report = told.term, told.number, None
        self.late, self.late_parts = told.late, told.late_parts
        self._asked = told.round < 0
        if told.round < 0:
            return self._gave_up()
        self._counted, self.membership, self.new = said, told.membership, frozenset(told.new)
        return self._heard_of_round(told)

    def _heard_of_round(self, told: Told) -> list[Action]:
        actions: list[Action] = []
        if told.round == self.round + 1:
            assert told.made is not None, "what made the round before comes with each one but the first"
            actions.append(CommitRound(self.round, told.made))
            self._begin(told.round)
        elif told.round > self.round:
            actions.append(SkipRounds(told.round, told.version, told.side))
            self._begin(told.round)
        if told.round != self.round:
            return actions
        self._known = Known(
            members=self._known.members,
            version=told.version,
            side=told.side,
            dealt=told.dealt,
            made=told.made,
            begun=self._known.begun or told.held < 0,
        )
        if told.held != self._held:
            self._held = told.held
            actions.append(HoldRound(told.round, told.held))
        return actions + self._heard_of_work(told)

    def _gave_up(self) -> list[Action]:
        if self._attempt is None or self._is_through or self._failed:
            return []
        self._failed = True
        return [AbandonAttempt(self._attempt.number)]

    def _heard_of_work(self, told: Told) -> list[Action]:
        actions: list[Action] = []
        if told.due != self._due:
            new = set(told.due) - set(self._due)
            self._due = told.due
            parts = {deal.part for deal in told.due}
            self._complete = {part: done for part, done in self._complete.items() if part in parts}
            self._late = tuple(deal for deal in self._late if deal in told.due)
            if new:
                actions.append(ComputeDeals(told.due))
        attempt = told.attempt
        before = self._attempt
        if attempt is not None and (before is None or attempt.number > before.number):
            self._reduced, self._failed, self._blamed = 0, False, -1
        elif (
            attempt is None
            or before is None
            or (attempt.number, attempt.last) <= (before.number, before.last)
        ):
            return actions
        self._attempt = attempt
        if not self._failed:
            actions.append(Reduce(told.round, attempt))
        return actions

    def _begin(self, round_: int) -> None:
        self.round = round_
        # A part that the leader did not hear of before it committed the round is too late.
        self._late = (*self._late, *(deal for deal in self._due if deal.part in self._complete))
        self._known = msgspec.structs.replace(self._known, begun=False)
        self._complete = {}
        self._attempt = None
        self._reduced, self._failed, self._blamed = 0, False, -1
        self._held = -1
