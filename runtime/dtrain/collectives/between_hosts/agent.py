"""The agent of one host: it follows, leads where no host before it does, and says what has to be sent.

Time comes in as `now`; messages, and the work that follows from them, go out by `take`. A message says all
that its sender knows, and is sent when it changes and each `BEAT_S`, so none has to arrive.

The host of the lowest number leads. When the leader has certainly ended, the next host leads at once. When
it is silent for a lease, the next one does, and each one after it a lease later, if no leader was heard. If
the replica that speaks for the leader's host ends, the next one of that host leads, in a higher term.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from dtrain.collectives.between_hosts.follower import (
    UNRECORDED,
    Action,
    Apply,
    BeginAttempt,
    Following,
    LeftBehind,
    Vote,
)
from dtrain.collectives.between_hosts.leader import LeadingHost
from dtrain.messages.replicas import Direction, HostState, PartFacts, Seat
from dtrain.steps.follower import leader_of, next_term

BEAT_S = 0.25
ASKS = 2
"""A host that asks this often after it was let in does not run; one question may have crossed the answer."""
COMES_S = 60.0
"""Seconds beyond its lease for which a new host may be silent, while it is sent the variables."""


class Agent:
    """One host: it follows the leader, and leads itself where it is its turn."""

    def __init__(
        self,
        vote: Vote,
        parts: int,
        lease_s: float,
        now: float,
        *,
        alone: bool = False,
        needed: int = 0,
        commits: bool = False,
    ) -> None:
        """Begin, or go on where another replica of this host has ended.

        Args:
            vote: of this host; all hosts have the same variables, those of its step.
            parts: how many each step has.
            lease_s: the time without a message after which a host is silent.
            commits: whether the commit of the step before is not in the memory of this host yet.
        """
        self.host = vote.host
        self.leader = leader_of(vote.term) if vote.term else min(vote.hosts)
        self.left_behind = vote.left_behind
        self._following = Following(vote)
        self._leading: LeadingHost | None = None
        self._parts = parts
        self._alone, self._needed = alone, needed
        self._lease_s = lease_s
        self._gone, self._silent = set(vote.gone), set(vote.silent)
        self._heard_s = dict.fromkeys(vote.hosts, now)
        self._contact_s = self._heard_s | dict.fromkeys(vote.gone, math.inf)
        self._contact_s |= dict.fromkeys(vote.silent, -math.inf)
        self._again_s: dict[int, float] = {}
        self._sent: dict[int, tuple[HostState | Direction, float]] = {}
        self._strangers: set[int] = set()
        self._directed: Direction | None = None
        self._seats: Mapping[int, tuple[Seat, ...]] = vote.seats
        self._asked: dict[int, int] = {}
        self._actions: list[Action] = [LeftBehind()] if self.left_behind else []
        if commits:
            self._actions.append(Apply(vote.step - 1, vote.before, vote.before_void))
        if self.host == self.leader:
            self._lead(now)

    @property
    def step(self) -> int:
        return self._following.step

    @property
    def vote(self) -> Vote:
        """The vote that `drain` has made by what it returned, to be kept before that is sent or done."""
        following = self._following.vote
        return msgspec.structs.replace(
            following,
            seats={**self._seats, **following.seats},
            gone=tuple(sorted(self._gone)),
            silent=tuple(sorted(self._silent)),
            left_behind=self.left_behind,
        )

    @property
    def stands(self) -> str | None:
        """Why this host, which leads, cannot go on; None if it can."""
        return self._leading.stands if self._leading is not None else None

    def complete(self, facts: PartFacts) -> None:
        self._following.complete(facts)

    def seated(self, seats: Sequence[Seat]) -> None:
        self._following.seated(seats)

    @property
    def leads_in(self) -> int:
        """The term in which this host leads; 0: it does not."""
        return self._leading.direction.term if self._leading is not None and not self.left_behind else 0

    @property
    def hosts(self) -> Sequence[int]:
        return self._following.hosts

    def admit(self, seats: Sequence[Seat]) -> None:
        """Let the replicas of another host take part from a later step on, if this host leads.

        One that asks again, although it was let in, has not been sent the variables: the leader of then has
        ended. So under that number it never runs.
        """
        if self._leading is None:
            return
        for host, seated in self._seats.items():
            if seats[0] in seated and host in self._following.hosts and not self._leading.has_heard(host):
                self._asked[host] = self._asked.get(host, 0) + 1
                if self._asked[host] == ASKS:
                    self._contact_s[host] = math.inf  # it has never gone on with others
                    self._gone.add(host)
                    self._lose(host)
        if self._leading is not None:
            self._leading.admit(seats)

    @property
    def awaited(self) -> list[str]:
        """The tasks that speak for the hosts awaited here: where this one does not lead, the leader's."""
        hosts = {self.leader} if self._leading is None else self._leading.awaited
        return [self._seats[host][0].task for host in sorted(hosts - {self.host}) if self._seats.get(host)]

    @property
    def welcome(self) -> frozenset[int]:
        """The hosts to which the variables have to be sent now, if this host leads."""
        return self._leading.welcome if self._leading is not None else frozenset()

    @property
    def membership(self) -> int:
        return self._following.membership

    @property
    def seats(self) -> Mapping[int, Sequence[Seat]]:
        return self._seats

    @property
    def written(self) -> int:
        return self._following.state.written

    def write(self, position: int) -> None:
        self._following.written(position)

    def arrive(self, step: int, position: int = UNRECORDED, *, void: bool = False) -> None:
        self._following.arrive(step, position, void=void)

    def joining(self, step: int, *, joining: bool) -> None:
        self._following.joining(step, joining=joining)

    def has_mean(self, attempt: int) -> None:
        self._following.has_mean(attempt)

    def failed(self, attempt: int, blamed: int = -1) -> None:
        """Note that an attempt cannot be finished here, and for which host it waited."""
        self._following.failed(attempt, blamed)

    def gone(self, host: int) -> None:
        """Note that all processes of a host have certainly ended."""
        self._gone.add(host)

    def received(self, sender: int, message: HostState | Direction, now: float) -> None:
        if sender in self._gone:
            return
        self._heard_s[sender] = now
        if contact := self._is_contact(sender, now) and self.host in message.hosts:
            self._contact_s[sender] = now
        if stranger := sender not in self._following.hosts:
            self._strangers.add(sender)
        if isinstance(message, Direction):
            if not stranger and self._following.heeds(message.term):
                self.leader = sender
                if contact and message.step >= 0 and self.host not in message.silent:
                    self._contact_s |= dict.fromkeys({*message.hosts} - {*message.silent, *self._gone}, now)
            self._follow(message)
        elif not stranger and self._leading is not None:
            self._leading.heard(message)
            self._end_if_deposed(now)

    def _is_contact(self, sender: int, now: float) -> bool:
        """Return whether a message is new: what comes first after a silence may have come long ago."""
        if now - self._contact_s.get(sender, now) < self._lease_s:
            self._again_s.pop(sender, None)
            return True
        return now - self._again_s.setdefault(sender, now) >= BEAT_S

    def drain(self, now: float) -> tuple[list[tuple[int, HostState | Direction]], list[Action]]:
        """Return what is to be sent now, as (host, message), and what is to be done; call it after each event
        and at least each `BEAT_S`.
        """
        sent: list[tuple[int, HostState | Direction]] = []
        if not self.left_behind:
            self._check_leases(now)
            self._hear_itself(now)
            if self._leading is not None and self._leading.stands and self._leading.without <= self._gone:
                self.left_behind = True  # no host is left that knows how far they went
                self._actions.append(LeftBehind())
        if not self.left_behind:
            self._queue_states(now, sent)
        actions, self._actions = self._actions, []
        return sent, actions

    def _queue_states(self, now: float, sent: list[tuple[int, HostState | Direction]]) -> None:
        if self._directed is not None:
            sent += [(stranger, self._directed) for stranger in self._strangers]
        self._strangers.clear()
        if self._leading is None:
            self._send(self.leader, self._following.state, now, sent)
            return
        for other in self._following.hosts:
            if other != self.host and other not in self._gone:
                self._send(other, self._leading.direction, now, sent)

    def _check_leases(self, now: float) -> None:
        hosts = self._following.hosts
        for host in sorted({*hosts, *self._gone} - {self.host}):
            silent = now - self._contact_s.setdefault(host, now + COMES_S) >= self._lease_s
            (self._silent.add if silent else self._silent.discard)(host)
            if host in self._gone and math.isfinite(self._contact_s[host]):
                self._contact_s[host] = -math.inf if silent else math.inf  # so it stays
                self._lose(host)
        if self._leading is not None:
            for host in hosts:
                heard_s = self._heard_s.setdefault(host, now + COMES_S)
                if host != self.host and now - heard_s >= self._lease_s:
                    self._leading.silent(host)
            return
        before = [host for host in hosts if host < self.host and host not in self._gone]
        leases = len([host for host in before if host != self.leader]) + (self.leader not in self._gone)
        if leases == 0 or now - self._heard_s.setdefault(self.leader, now) >= leases * self._lease_s:
            self._lead(now)

    def _lose(self, host: int) -> None:
        """Have a host that has ended taken for gone, or for silent, if it may have left this one behind."""
        if self._leading is not None:
            (self._leading.silent if host in self._silent else self._leading.gone)(host)

    def _lead(self, now: float) -> None:
        state = self._following.state
        term = next_term(state.term, self.host)
        about = self.host, term, state, self._parts, self.leader
        self._leading = LeadingHost(*about, alone=self._alone, needed=self._needed)
        for host in self._gone:
            self._lose(host)
        for host in state.hosts:
            if host != self.leader:
                self._heard_s[host] = now
        self.leader = self.host

    def _hear_itself(self, now: float) -> None:
        while (leading := self._leading) is not None:
            told = leading.direction
            self._follow(told)
            leading.heard(self._following.state)
            self._end_if_deposed(now)
            if leading.direction is told or self.left_behind:
                return

    def _end_if_deposed(self, now: float) -> None:
        if self._leading is not None and self._leading.deposed:
            self._leading = None
            self._heard_s[self.leader] = now

    def _follow(self, told: Direction) -> None:
        leads = leader_of(told.term) == self.host  # and what it says itself was overtaken by nothing
        late = not leads and self._directed is not None and _age(told) < _age(self._directed)
        if self._following.heeds(told.term) and not late:
            self._directed = told
            self._seats = told.seats or self._seats
        before = set(self._following.hosts)
        for action in self._following.heard(told):
            if isinstance(action, LeftBehind):
                self.left_behind = True
            if isinstance(action, BeginAttempt):
                self._actions = [each for each in self._actions if not isinstance(each, BeginAttempt)]
            self._actions.append(action)
        self._strangers |= before - set(self._following.hosts)
        if self._leading is not None and self._following.term > self._leading.direction.term:
            self._leading = None

    def _send(
        self,
        host: int,
        message: HostState | Direction,
        now: float,
        sent: list[tuple[int, HostState | Direction]],
    ) -> None:
        last = self._sent.get(host)
        # Not a whole beat: what was sent a little after the last look would else wait for two.
        if last is None or last[0] != message or now - last[1] >= BEAT_S / 2:
            self._sent[host] = message, now
            sent.append((host, message))


def _age(told: Direction) -> tuple[int, int, int, int]:
    """Return what rises from one direction to the next; one that was overtaken on its way says what was."""
    return told.term, told.membership, told.step, told.attempt
