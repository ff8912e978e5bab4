"""The machine of one host: what it says to the leader, and what it does when the leader directs.

The rule *Commit* (docs/design/collectives.md#commit):

1. A host has the mean of an attempt before it says so, and keeps all gradients until it applies.
2. It applies a step only when the leader makes a later one; then every host that took part had the mean.
3. It begins an attempt only if that is newer than what it has begun, and forgets the mean of the earlier one.
4. It heeds no leader of an earlier term than the newest that it has answered, and none that was left behind.
5. It has a mean only with all records of the leader's ledger that the attempt names: what is ordered holds at
   every host from the same step on.
6. An attempt that another replica of this host has begun, or that names another one, has failed here, unless
   its mean is here already: the streams of the replica that speaks now are not among its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.collectives.between_hosts.promise import Promise
from dtrain.collectives.between_hosts.quorum import leader_of
from dtrain.messages.between_hosts import Direction, HostState, PartFacts, Seat

UNRECORDED = 1 << 62
"""In the place of a position, where the leader keeps no records."""
_UNKNOWN = -2
"""Of a step that may be held: the replica that spoke before may have said so or not."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Have the gradients of these parts computed, those that are not there yet."""

    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Give up the attempt that is under way, if any, and begin this one."""

    step: int
    attempt: int
    hosts: tuple[int, ...]
    parts_of: dict[int, tuple[int, ...]]
    parts: tuple[PartFacts, ...]
    seats: dict[int, tuple[Seat, ...]]
    void: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Update the variables with the mean of these parts: the step is committed."""

    step: int
    parts: tuple[PartFacts, ...]
    void: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait with this step for more replicas: so many live; -1: wait no more."""

    step: int
    live: int


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """End: the others go on without this host, and its variables are no longer theirs."""


Action = Compute | Begin | Apply | Hold | LeftBehind


class Following:
    """One host.

    Attributes:
        step: the version that is made.
        term: of the leader that is heeded.
        hosts: of the newest membership.
    """

    def __init__(self, promise: Promise) -> None:
        """Go on from what this host has promised; its first seat is the replica that speaks now."""
        self.host = promise.host
        self.hosts = promise.hosts
        self.step = promise.step
        self.term = promise.term
        self.membership = promise.membership
        self._counted = promise.term, promise.membership  # as the leader of that term has told
        self._seats = promise.seats[promise.host]
        self._heirs, self._named = promise.heirs, promise.named
        self._parts: dict[int, PartFacts] = {}
        self._due: tuple[int, ...] = ()
        self._agreed, self._void = promise.agreed, promise.void
        self._before, self._before_void = promise.before, promise.before_void
        self._attempt = promise.attempt
        self._summed = promise.summed
        self._failed = promise.attempt >= 0 and not promise.summed
        self._blamed = -1
        self._written, self._needed = promise.written, promise.needed
        self._arrived, self._arrived_void = -1, False
        self._dealt, self._joining = promise.dealt, False
        self._held = _UNKNOWN if promise.term else -1

    @property
    def promise(self) -> Promise:
        """All that another replica needs to go on; of other hosts and their replicas nothing."""
        return Promise(
            host=self.host,
            hosts=self.hosts,
            seats={self.host: self._seats},
            heirs=self._heirs,
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
        """All that the leader has to know."""
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
        """Take note that the gradient of a part is here."""
        self._parts[facts.part] = facts

    def seated(self, seats: Sequence[Seat]) -> None:
        """Take note of the live replicas of this host."""
        self._seats = tuple(seats)

    def has_mean(self, attempt: int) -> None:
        """Take note that the mean of an attempt is here, whole."""
        if attempt == self._attempt and not self._failed:
            self._summed = True

    def failed(self, attempt: int, blamed: int = -1) -> None:
        """Take note that an attempt cannot be finished here."""
        if attempt == self._attempt and not self._summed:
            self._failed = True
            self._blamed = blamed

    def written(self, position: int) -> None:
        """Take note that the records of the leader's ledger are here up to this position."""
        self._written = max(self._written, position)

    def arrive(self, step: int, position: int, *, void: bool) -> None:
        """Take note that the leader of this host has arrived, and of its ledger's position."""
        if step == self.step:
            self._arrived, self._arrived_void = position, void

    def joining(self, step: int, *, joining: bool) -> None:
        """Take note whether replicas wait, in a step, to take part from the next one on."""
        if step == self.step:
            self._joining = joining

    def heeds(self, term: int) -> bool:
        """Return whether a leader of this term may direct: none of an earlier one, or that is left behind."""
        return term >= self.term and leader_of(term) in self.hosts

    def heard(self, told: Direction) -> list[Action]:
        """Heed a leader; return what follows from it, in this order."""
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
            actions.append(Compute(due))
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
        return [Begin(told.step, told.attempt, told.hosts, told.due, told.parts, told.seats, told.void)]

    def _heard_of_hold(self, told: Direction) -> list[Action]:
        self._dealt = self._dealt or told.held < 0
        if told.held == self._held:
            return []
        self._held = told.held
        return [Hold(told.step, told.held)]

    def _next(self) -> None:
        self._heirs = self._named or self._heirs
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
