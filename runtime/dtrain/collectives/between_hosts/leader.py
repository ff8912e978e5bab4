"""The machine of the leader: from how far each host is to what all hosts are to do.

The rule *Attempts* (docs/design/collectives.md#attempts):

1. Every part of a step is due at one host. Once all are there, and the replica that leads has arrived, so
   that it orders nothing more for this step, an attempt at their sum begins. A step that it makes void needs
   no parts, and makes no version.
2. The step is committed when every host has the mean of one and the same attempt.
3. If a host is lost, its parts are due at the hosts of the next replicas; what others have computed stays. If
   a link is lost, and no host, the same gradients are summed in the next attempt, as they are where another
   replica speaks for a host from now on. If two hosts can never sum with each other, the run goes on without
   the one of higher number, or the one that does not lead. An
   attempt is abandoned only when all hosts have received it. Before that, a host that does not answer is
   lost when its lease has ended.
4. A host is left behind only by a group that may go on alone, by the newest membership that all of
   them have heard of. Otherwise the leader stands, and says for which hosts it waits.
5. A host that asks takes part from a step on whose predecessor is committed, under a number that no host has
   had: the leader's host then has the variables of just that step, and sends them once all others have heard
   of the new host.
6. A new leader has a higher term. It first hears from the hosts that are to go on; from then on they heed no
   earlier one. Where one of them has applied a step, that step is committed, and all others of them have its
   mean. No step that was not applied among them is taken for made.
7. A step that begins with fewer live replicas than are needed is *held*: no replica gets a part of it until
   there are enough. If replicas ask to take part meanwhile, the step is made void, so that they can from the
   next one on. A step whose parts have been dealt is finished by those who are left, under a new leader too.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dtrain.collectives.between_hosts.follower import UNRECORDED
from dtrain.collectives.step import successor
from dtrain.messages.replicas import Direction, HostState, PartFacts, Seat
from dtrain.steps.follower import first_attempt, may_go_on

TRIES = 3
"""The number of attempts of one step that may fail between two hosts before one of them is left behind."""


class _Attempt(NamedTuple):
    parts: tuple[PartFacts, ...]
    seats: dict[int, tuple[Seat, ...]]
    written: int
    void: bool


class LeadingHost:
    """One leader, of one term.

    Attributes:
        without: the hosts without which it may not go on, while it stands.
        deposed: whether another leader has taken over; this one gives no more directions.
    """

    def __init__(
        self,
        host: int,
        term: int,
        state: HostState,
        parts: int,
        former: int,
        *,
        alone: bool = False,
        needed: int = 0,
    ) -> None:
        """Begin by asking.

        Args:
            term: higher than that of any leader before.
            former: the host of the leader before; of the first one, itself.
            needed: so many replicas must live for a step to begin.
        """
        self._host = host
        self._term = term
        self._parts = range(parts)
        self._former = former
        self._alone = alone
        self._needed = needed
        self._held = False
        self._acknowledged: Sequence[int] = state.hosts
        self._membership = state.membership
        self._hosts = set(state.hosts)
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        self._states: dict[int, HostState] = {}
        self._step = -1
        self._due: dict[int, int] = {}
        self._order: Sequence[int] = ()
        self._host_of: Mapping[int, int] = {}
        self._attempt = first_attempt(term)
        self._begun: _Attempt | None = None
        self._proxies: Mapping[int, tuple[Seat, ...]] = {}
        self._failures: dict[frozenset[int], int] = {}
        self._new: set[int] = set()
        self._asking: dict[int, tuple[Seat, ...]] = {}
        self.stands: str | None = None
        self.without: set[int] = set()
        self.deposed = False
        self.direction = Direction(term=term, membership=state.membership, hosts=state.hosts)

    def gone(self, host: int) -> None:
        self._gone.add(host)
        self._go_on()

    def admit(self, seats: Sequence[Seat]) -> None:
        """Let the replicas of another host take part, from the step on that begins next."""
        self._asking[seats[0].rank] = tuple(seats)
        if self._held:
            self._go_on()

    @property
    def welcome(self) -> frozenset[int]:
        """The hosts that are let in and may begin, as every other one knows of them.

        If one began before, and this leader ended, two groups that know of different hosts could both go on.
        """
        new = self._new & self._hosts
        if not new or self._step < 0:
            return frozenset()
        others = self._hosts - self._new - self._gone
        informed = all(self._states[host].membership == self._membership for host in others)
        return frozenset(new) if informed else frozenset()

    @property
    def awaited(self) -> frozenset[int]:
        """The hosts that have not said, or done, what the next decision needs."""
        if self._step < 0:
            return frozenset(self._hosts - self._gone - self._states.keys())
        if self._begun is None:
            return frozenset(host for part, host in self._due.items() if part not in self._parts_of(host))
        states = [self._states[host] for host in self._hosts]
        return frozenset(each.host for each in states if not (each.step == self._step and each.has_mean))

    def has_heard(self, host: int) -> bool:
        return host in self._states and host not in self._new

    def silent(self, host: int) -> None:
        if host not in self._silent:
            self._silent.add(host)
            self._go_on()
            if self._step >= 0:
                self._update_direction()

    def heard(self, state: HostState) -> None:
        self.deposed = self.deposed or state.term > self._term
        if state.term != self._term or state.host not in self._hosts or self.deposed:
            return
        self._silent.discard(state.host)
        self._new.discard(state.host)
        known = self._states.get(state.host)
        self._states[state.host] = state
        if known is not None and known.seats[:1] != state.seats[:1]:
            self._failures = {}  # of sums with the replica that spoke before
        self._go_on()
        if self._step >= 0 and known is not None and known.seats != state.seats:
            self._update_direction()

    def _go_on(self) -> None:
        self.stands = None
        if self._step < 0:
            if not self._began():
                return
        else:
            self._note_acknowledged()
            lost = self._hosts & (self._gone | self._silent)
            if lost and not self._left_behind(lost):
                return
        while self._advanced():
            pass

    def _note_acknowledged(self) -> None:
        heard = [self._states.get(host) for host in sorted(self._hosts - self._gone)]
        if all(state is not None and state.membership == self._membership for state in heard):
            self._acknowledged = sorted(self._hosts)

    def _left_behind(self, lost: set[int]) -> bool:
        """Go on without hosts, if that is allowed; return whether it is."""
        if not may_go_on(self._acknowledged, self._hosts - lost, self._gone, self._host):
            self._stand(lost)
            return False
        self._hosts -= lost
        self._membership += 1
        self._deal_again(lost)
        self._next_attempt()
        return True

    def _stand(self, lost: set[int]) -> None:
        names = ", ".join(str(host) for host in sorted(lost - self._gone))
        self.without = lost
        self.stands = f"too few hosts can go on without {names}, of which nothing is heard"

    def _began(self) -> bool:
        """Begin when every host that is not silent has answered, if these hosts may go on alone."""
        present = self._hosts - self._gone - self._silent
        if not present <= self._states.keys():
            return False
        states = [self._states[host] for host in present]
        newest = max(states, key=lambda state: state.membership)
        taking_part = [state for state in states if state.host in newest.hosts]
        base = min(taking_part, key=lambda state: state.membership).hosts
        there = {state.host for state in taking_part}
        if self._host not in there:
            self.deposed = True
            return False
        if not may_go_on(base, there, self._gone, self._former):
            self._stand(set(newest.hosts) - there)
            return False
        self._acknowledged = base
        self._hosts = there
        self._membership = newest.membership + 1
        self._begin_step(max(state.step for state in taking_part))
        return True

    def _begin_step(self, step: int) -> None:
        self._step = step
        dealt = any((state.step, state.dealt) == (step, True) for state in self._states.values())
        self._held = len(self._live) < self._needed and not dealt
        self._due = {}
        if not self._held:
            self._deal()
        self._begun = None
        self._failures = {}
        self._update_direction()

    @property
    def _live(self) -> Mapping[int, Seat]:
        return {seat.rank: seat for host in self._hosts for seat in self._states[host].seats}

    def _deal(self) -> None:
        """Let every part be due at one host: where it is already, or at those of the replicas by turns."""
        at = [self._host] if self._alone else self._hosts
        self._host_of = {seat.rank: host for host in at for seat in self._states[host].seats}
        self._order = sorted(self._host_of)
        self._due = {part: self._host_of[self._order[part % len(self._order)]] for part in self._parts}
        for host in sorted(self._hosts, reverse=True):
            self._due |= dict.fromkeys(self._parts_of(host), host)

    def _let_in(self, step: int) -> None:
        """Make members of those that have asked, but for replicas whose predecessors still are."""
        here = self._live
        for rank, seats in list(self._asking.items()):
            if here.get(rank) in seats:
                del self._asking[rank]
            elif rank not in here:
                del self._asking[rank]
                number = 1 + max(self._numbered())
                state = HostState(
                    term=self._term,
                    host=number,
                    membership=self._membership,
                    hosts=tuple(sorted(self._hosts)),
                    step=step,
                    parts=(),
                    seats=seats,
                )
                self._states[number] = state
                self._new.add(number)
                self._hosts.add(number)
                self._membership += 1
                self._attempt += 1  # whose streams are opened anew, for these hosts

    def _numbered(self) -> set[int]:
        told = {host for state in self._states.values() for host in state.hosts}
        return told | self._states.keys() | self._hosts | self._gone | self._silent | {self._former}

    def _deal_again(self, lost: set[int]) -> None:
        """Let the parts of lost hosts be due where they lie already, or at the next replica's host."""
        dead = {rank for rank, host in self._host_of.items() if host not in self._hosts}
        for part, host in self._due.items():
            if host in lost:
                have = [other for other in sorted(self._hosts) if part in self._parts_of(other)]
                rank = successor(self._order, part % len(self._order), dead)
                self._due[part] = have[0] if have else self._host_of[rank]

    def _parts_of(self, host: int) -> dict[int, PartFacts]:
        state = self._states.get(host)
        if state is None or state.step != self._step:
            return {}
        return {facts.part: facts for facts in state.parts}

    def _next_attempt(self) -> None:
        self._attempt += 1
        self._begun = None
        self._update_direction()

    def _advanced(self) -> bool:
        """Take the next possible decision; return whether there was one."""
        if self._begun is None:
            return self._released() or self._begin_attempt()
        states = [self._states[host] for host in sorted(self._hosts)]
        current = [state for state in states if (state.step, state.attempt) == (self._step, self._attempt)]
        if len(current) < len(states):
            return False  # for a host that knows no such attempt, others wait in vain, and for each other
        if any(state.failed for state in current):
            return self._gave_up([state for state in current if state.failed])
        if all(state.has_mean for state in states):
            self._let_in(self._step + 1)
            self._begin_step(self._step + 1)
            return True
        return False

    def _released(self) -> bool:
        if not self._held or len(self._live) < self._needed:
            return False
        self._held = False
        self._deal()
        self._update_direction()
        return True

    @property
    def _has_newcomers(self) -> bool:
        here = [state for state in self._states.values() if state.step == self._step]
        return not self._asking.keys() <= self._live.keys() or any(
            state.joining for state in here if state.host in self._hosts
        )

    def _begin_attempt(self) -> bool:
        own = self._states[self._host]
        if own.step != self._step or own.arrived < first_attempt(self._term):
            return False
        void = own.void or (self._held and self._has_newcomers)
        facts = [self._parts_of(host).get(part) for part, host in sorted(self._due.items())]
        there = tuple(each for each in facts if each is not None)
        if (self._held or len(there) < len(facts)) and not void:
            return False
        needed = own.arrived if own.arrived < UNRECORDED else -1
        seats = self._seats()
        proxies = {host: seated[:1] for host, seated in seats.items()}
        if proxies != self._proxies:  # streams are those of an attempt from step to step
            self._attempt += 1
            self._proxies = proxies
        self._begun = _Attempt(() if void else there, seats, needed, void)
        self._update_direction()
        return True

    def _seats(self) -> dict[int, tuple[Seat, ...]]:
        return {host: self._states[host].seats for host in sorted(self._hosts)}

    @property
    def _is_spoken(self) -> bool:
        named = self._begun.seats if self._begun is not None else {}
        return all(self._states[host].seats[:1] == seats[:1] for host, seats in named.items())

    def _gave_up(self, failed: Sequence[HostState]) -> bool:
        for state in failed if self._is_spoken else ():
            if state.blamed in self._hosts:
                pair = frozenset((state.host, state.blamed))
                self._failures[pair] = self._failures.get(pair, 0) + 1
                if self._failures[pair] >= TRIES and len(pair) == 2:
                    left = max(pair - {self._host})
                    self._failures = {}
                    return self._left_behind({left})
        self._next_attempt()
        return True

    def _update_direction(self) -> None:
        begun = self._begun or _Attempt((), self._seats(), -1, void=False)
        self.direction = Direction(
            term=self._term,
            membership=self._membership,
            hosts=tuple(sorted(self._hosts)),
            step=self._step,
            due={
                host: tuple(part for part, at in sorted(self._due.items()) if at == host)
                for host in sorted(self._hosts)
            },
            attempt=self._attempt if self._begun is not None else -1,
            parts=begun.parts,
            seats=begun.seats,
            written=begun.written,
            void=begun.void,
            held=len(self._live) if self._held else -1,
            silent=tuple(sorted(self._silent & self._hosts)),
        )
