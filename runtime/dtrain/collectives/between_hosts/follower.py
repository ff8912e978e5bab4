"""The machine of one host that follows: what it says and votes, and when it may go on without others.

The rule *Commit* (docs/design/collectives.md#commit):

1. A host has the mean of an attempt before it says so, and keeps all gradients until it applies.
2. It applies a step only when the leader makes a later one; then every host that took part had the mean.
3. It begins an attempt only if that is newer than what it has begun, and forgets the mean of the earlier one.
4. It heeds no leader of an earlier term than the newest that it has answered, and none that was left behind.
5. It has a mean only with all records of the leader's ledger that the attempt names: what is ordered holds at
   every host from the same step on.
6. An attempt that another replica of this host has begun, or that names another one, has failed here, unless
   its mean is here already: the streams of the replica that speaks now are not among its own.

The rule *Proxies* (docs/design/collectives.md#proxies):

1. The replica that speaks for a host writes its vote into the memory of the host before anything is sent,
   or done, that follows from it.
2. If it ends, one of the `successors` goes on from there: it takes the lock that the kernel takes back from a
   process that has ended, so that never two speak. For the other hosts it is the same host, of which nothing
   was heard for a moment.
3. A successor is known to all hosts: they have begun an attempt that names it, and that was committed since.
So a
   host of which every known replica has ended never speaks again.

A host is *gone* when all its processes have certainly ended, which is final, and the asking host was in
contact with it up to then: within a lease it, or the leader on its behalf, was heard to go on with the asking
host. It is *silent* when its lease has run out: it may be dead, or behind a link that is cut and still
connected to others; or it has ended since, and may have gone on without the asking host before. Where no host
is silent, all that live are here, and go on, however few. Otherwise more than half of the members must be
present, or half with the leader among them: of two such groups that have no host in common, one would be too
small. A host that is gone counts as a member here, for it may have agreed to another group before its end.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from dtrain.messages.replicas import Direction, HostState, PartFacts, Seat
from dtrain.steps.follower import leader_of


class Vote(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One host's.

    Attributes:
        hosts: of the newest membership that it has heard of.
        successors: the replicas of this host that may speak for it.
        gone: the hosts that have certainly ended.
        silent: the hosts with which this one had no contact for a lease, or up to their end.
        attempt: the newest that was begun; -1: none of this step.
        agreed: of the attempt, all parts that count or are empty.
        void: whether the attempt is at a step that makes no version.
        named: the replicas of this host that the attempt names.
        summed: whether the mean of the attempt is here, whole.
        needed: the position up to which the attempt needs the leader's records.
        dealt: whether the parts of this step are dealt.
        before: of the step before, the parts.
        over: whether nobody is to speak for this host any more, as training has ended.
    """

    host: int
    hosts: tuple[int, ...]
    seats: dict[int, tuple[Seat, ...]]
    successors: tuple[Seat, ...] = ()
    step: int = 0
    term: int = 0
    membership: int = 0
    gone: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    attempt: int = -1
    agreed: tuple[PartFacts, ...] = ()
    void: bool = False
    named: tuple[Seat, ...] = ()
    summed: bool = False
    needed: int = -1
    written: int = -1
    dealt: bool = False
    before: tuple[PartFacts, ...] = ()
    before_void: bool = False
    left_behind: bool = False
    over: bool = False

    @classmethod
    def first(
        cls, host: int, seats: dict[int, tuple[Seat, ...]], step: int = 0, term: int = 0, membership: int = 0
    ) -> Self:
        """Return the vote of a host that begins; all hosts know these replicas."""
        return cls(
            host=host,
            hosts=tuple(sorted(seats)),
            seats=seats,
            successors=seats[host],
            step=step,
            term=term,
            membership=membership,
        )

    def spoken_by(self, rank: int) -> Self:
        """Return the same vote for the replica that speaks after another has ended."""
        own = self.seats[self.host]
        left = sorted(own if own[0].rank == rank else own[1:], key=lambda seat: seat.rank != rank)
        return msgspec.structs.replace(self, seats={**self.seats, self.host: tuple(left)})


UNRECORDED = 1 << 62
"""In the place of a position, where the leader keeps no records."""
_UNKNOWN = -2
"""Of a step that may be held: the replica that spoke before may have said so or not."""


class ComputeParts(msgspec.Struct, frozen=True):
    """Compute the gradients of those of these parts that are not there yet."""

    parts: tuple[int, ...]


class BeginAttempt(msgspec.Struct, frozen=True):
    """Give up the attempt that is under way, if any, and begin this one."""

    step: int
    attempt: int
    hosts: tuple[int, ...]
    parts_of: dict[int, tuple[int, ...]]
    parts: tuple[PartFacts, ...]
    seats: dict[int, tuple[Seat, ...]]
    void: bool = False


class Apply(msgspec.Struct, frozen=True):
    """Update the variables with the mean of these parts: the step is committed."""

    step: int
    parts: tuple[PartFacts, ...]
    void: bool = False


class HoldStep(msgspec.Struct, frozen=True):
    """Wait with this step for more replicas: so many live; -1: wait no more."""

    step: int
    live: int


class LeftBehind(msgspec.Struct, frozen=True):
    """End: the others go on without this host, and its variables are no longer theirs."""


Action = ComputeParts | BeginAttempt | Apply | HoldStep | LeftBehind


class Following:
    """One host as it follows the leader."""

    def __init__(self, vote: Vote) -> None:
        self.host = vote.host
        self.hosts = vote.hosts
        self.step = vote.step
        self.term = vote.term
        self.membership = vote.membership
        self._counted = vote.term, vote.membership  # as the leader of that term has told
        self._seats = vote.seats[vote.host]
        self._successors, self._named = vote.successors, vote.named
        self._parts: dict[int, PartFacts] = {}
        self._due: tuple[int, ...] = ()
        self._agreed, self._void = vote.agreed, vote.void
        self._before, self._before_void = vote.before, vote.before_void
        self._attempt = vote.attempt
        self._summed = vote.summed
        self._failed = vote.attempt >= 0 and not vote.summed
        self._blamed = -1
        self._written, self._needed = vote.written, vote.needed
        self._arrived, self._arrived_void = -1, False
        self._dealt, self._joining = vote.dealt, False
        self._held = _UNKNOWN if vote.term else -1

    @property
    def vote(self) -> Vote:
        """All that another replica needs to go on, without other hosts and their replicas."""
        return Vote(
            host=self.host,
            hosts=self.hosts,
            seats={self.host: self._seats},
            successors=self._successors,
            step=self.step,
            term=self.term,
            membership=self.membership,
            attempt=self._attempt,
            agreed=self._agreed,
            void=self._void,
            named=self._named,
            summed=self._summed,
            needed=self._needed,
            written=self._written,
            dealt=self._dealt,
            before=self._before,
            before_void=self._before_void,
        )

    @property
    def _has_mean(self) -> bool:
        return self._summed and self._written >= self._needed

    @property
    def state(self) -> HostState:
        return HostState(
            term=self.term,
            host=self.host,
            membership=self.membership,
            hosts=self.hosts,
            step=self.step,
            parts=tuple(self._parts[part] for part in sorted(self._parts)),
            seats=self._seats,
            attempt=self._attempt,
            has_mean=self._has_mean,
            failed=self._failed,
            blamed=self._blamed,
            written=self._written,
            arrived=self._arrived,
            void=self._arrived_void,
            dealt=self._dealt,
            joining=self._joining,
        )

    def complete(self, facts: PartFacts) -> None:
        self._parts[facts.part] = facts

    def seated(self, seats: Sequence[Seat]) -> None:
        self._seats = tuple(seats)

    def has_mean(self, attempt: int) -> None:
        if attempt == self._attempt and not self._failed:
            self._summed = True

    def failed(self, attempt: int, blamed: int = -1) -> None:
        if attempt == self._attempt and not self._summed:
            self._failed = True
            self._blamed = blamed

    def written(self, position: int) -> None:
        self._written = max(self._written, position)

    def arrive(self, step: int, position: int, *, void: bool) -> None:
        if step == self.step:
            self._arrived, self._arrived_void = position, void

    def joining(self, step: int, *, joining: bool) -> None:
        if step == self.step:
            self._joining = joining

    def heeds(self, term: int) -> bool:
        """Return whether a leader of this term may direct: none of an earlier one, or that is left behind."""
        return term >= self.term and leader_of(term) in self.hosts

    def heard(self, told: Direction) -> list[Action]:
        """Follow a leader's direction; return the actions in their order."""
        said = told.term, told.membership
        if told.step >= 0 and self.host not in told.hosts and said >= self._counted:
            return [LeftBehind()]
        if said < (self.term, self.membership) or not self.heeds(told.term):
            return []
        self.term = told.term
        if told.step < 0:
            return []
        self._counted, self.membership, self.hosts = said, told.membership, told.hosts
        actions: list[Action] = []
        if told.step == self.step + 1:
            if not self._has_mean:
                return [LeftBehind()]
            actions.append(Apply(self.step, self._agreed, self._void))
            self._next()
        if told.step != self.step:
            return actions if told.step < self.step else [LeftBehind()]
        actions += self._heard_of_hold(told)
        due = told.due.get(self.host, ())
        if set(due) - self._parts.keys() and due != self._due:
            self._due = due
            actions.append(ComputeParts(due))
        if told.attempt > self._attempt:
            actions += self._heard_of_attempt(told)
        return actions

    def _heard_of_attempt(self, told: Direction) -> list[Action]:
        self._attempt = told.attempt
        self._agreed, self._void = told.parts, told.void
        self._needed = told.written
        self._named = told.seats.get(self.host, ())
        self._summed = False
        self._failed = bool(self._named) and self._named[0] != self._seats[0]
        self._blamed = -1
        if self._failed:
            return []
        return [
            BeginAttempt(told.step, told.attempt, told.hosts, told.due, told.parts, told.seats, told.void)
        ]

    def _heard_of_hold(self, told: Direction) -> list[Action]:
        self._dealt = self._dealt or told.held < 0
        if told.held == self._held:
            return []
        self._held = told.held
        return [HoldStep(told.step, told.held)]

    def _next(self) -> None:
        self._successors = self._named or self._successors
        self._before, self._before_void = self._agreed, self._void
        self._agreed, self._void, self._named = (), False, ()
        self.step += 1
        self._dealt, self._joining, self._held = False, False, -1
        self._parts = {}
        self._due = ()
        self._attempt = -1
        self._summed = self._failed = False
        self._blamed = -1
        self._arrived, self._arrived_void = -1, False
