"""One member: it follows the leader, leads where no member before it does, and says what has to be sent.

Time comes in as `now`. Messages, and the work that follows from them, go out by `drain`. A message says all
that its sender knows, and is sent when it changes and each `BEAT_S`, so none has to arrive.

The live member of the lowest rank leads. When the leader has certainly ended, the next one leads at once.
When it is silent for a lease, the next one of another host does, and each one after it a lease later, if no
leader was heard (docs/design/steps.md#when-the-leader-dies).
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from dtrain.messages.rounds import (
    HostStanding,
    Known,
    MemberReport,
    MemberSeat,
    RoundMade,
    Told,
)
from dtrain.steps.follower import Action, Follower, LeaveRun, leader_of, next_term
from dtrain.steps.leader import RoundLeader
from dtrain.steps.round_parts import RoundRules

AnyRoundMessage = MemberReport | Told
BEAT_S = 0.25
ASKS = 2
"""A member that asks this often after it was let in does not run; one question may have crossed the
answer.
"""
COMES_S = 60.0
"""Seconds beyond its lease for which a newcomer may be silent, while it is sent the values."""


class Welcomed(NamedTuple):
    """A newcomer that may begin, and what it is told.

    Attributes:
        host_members: those of its host that have its memory; none: it makes one, and is sent the values.
    """

    seat: MemberSeat
    told: Told
    host_members: Sequence[int]


class HostMemory(NamedTuple):
    """The memory of the one host that has all members (docs/design/steps.md#silent-members-of-one-host).

    Attributes:
        take_lead: takes the leader's lock until this process ends; returns False while another member has it.
        read: returns how the round stands, as the newest leader has written; None: none has.
        write: writes that down, as the leader.
    """

    take_lead: Callable[[], bool]
    read: Callable[[], HostStanding | None]
    write: Callable[[HostStanding], None]


class RoundMember(Follower):
    """One member of a call of `fit`: it follows, and says more where it leads.

    Attributes:
        leader: the number of the member that it takes for the leader.
        left_behind: whether the others have gone on without it.
        seats: of all members of which it has heard, also those that are no longer.
    """

    def __init__(
        self,
        number: int,
        known: Known,
        rules: RoundRules,
        lease_s: float,
        now: float,
        *,
        round_: int = 0,
        term: int = 0,
        membership: int = 0,
    ) -> None:
        """Begin, with the values of this round.

        Args:
            lease_s: the time without a message after which a member is silent; infinite on one host.
        """
        super().__init__(number, known, round_=round_, term=term, membership=membership)
        self._rules = rules
        self._lease_s = lease_s
        self._has_leases = math.isfinite(lease_s)
        self.seats = dict(self.members)
        first = min(self.seats.values(), key=lambda seat: seat.rank).number
        self.leader = leader_of(term) if term else first
        self.left_behind = False
        self._leading: RoundLeader | None = None
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        self._heard_s = dict.fromkeys(self.seats, now)
        self._contact_s = dict(self._heard_s)
        self._drained_s = now
        self._again_s: dict[int, float] = {}
        self._sent: dict[int, tuple[AnyRoundMessage, float]] = {}
        self._strangers: set[int] = set()
        self._asked_in: dict[int, int] = {}
        self._heard_itself: tuple[int, MemberReport | None] = 0, None
        self._actions: list[Action] = []
        self._host: HostMemory | None = None
        self._standing: HostStanding | None = None
        if self.number == self.leader:
            self._lead(now)

    def await_first(self, for_s: float) -> None:
        """Let others be silent so much longer until they are first heard: they begin together."""
        self._heard_s = {number: at + for_s for number, at in self._heard_s.items()}
        self._contact_s = dict(self._heard_s)

    # How it stands

    @property
    def leads_in(self) -> int:
        """The term in which it leads; 0: it does not, or has not yet heard from those that go on with it."""
        leading = self._leading
        return leading.term if leading is not None and leading.round >= 0 and not self.left_behind else 0

    def is_begun(self, number: int) -> bool:
        """Return whether a member has begun, as far as this one has heard."""
        return number not in self.new

    @property
    def probed(self) -> Collection[int]:
        """The members of which this one has to know now whether they live: those that lead before it does."""
        if self._leading is not None or not {self.leader} & (self._gone | self._silent):
            return ()
        rank, others = self.members[self.number].rank, self.members.items()
        return [each for each, seat in others if seat.rank < rank and each not in self._gone]

    @property
    def stands(self) -> str | None:
        """Why this member, which leads, cannot go on; None if it can."""
        return self._leading.stands if self._leading is not None else None

    @property
    def awaited(self) -> list[str]:
        """The tasks of the members awaited here: where this one does not lead, the leader's."""
        late = self.late or {self._next_to_lead}
        numbers = frozenset(late if self._leading is None else self._leading.awaited)
        return [self.seats[each].task for each in sorted(numbers - {self.number}) if each in self.seats]

    @property
    def _next_to_lead(self) -> int:
        there = [seat for seat in self.members.values() if seat.number not in self._gone]
        if self.leader not in self._gone or not there:
            return self.leader
        return min(there, key=lambda seat: seat.rank).number

    @property
    def awaited_parts(self) -> Collection[int]:
        """The parts for which all wait, as far as this member knows."""
        return self.late_parts if self._leading is None else self._leading.awaited_parts

    @property
    def welcome(self) -> list[Welcomed]:
        """The newcomers that may begin now, if this one leads and is in contact with all others.

        While it stood still, these may have gone on without it.
        """
        leading = self._leading
        if leading is None or self.left_behind:
            return []
        newcomers = sorted(leading.welcome)
        others = leading.directed - self._gone - {self.number} if newcomers and self._host is None else ()
        if any(self._is_late(each, self._drained_s) for each in others):
            return []
        return [
            Welcomed(self.members[each], leading.told(each), leading.host_members(each)) for each in newcomers
        ]

    # What happens in its own process

    def share(self, host: HostMemory) -> None:
        """Lead only with the leader's lock in the memory of the host; write there how the round stands."""
        self._host = host
        if self._leading is not None:
            taken = host.take_lead()
            assert taken, "the first leader takes the lock before any other member"

    def arrive(self, round_: int, written: int = -1, ordered: RoundMade | None = None) -> None:
        """Note that this process, where it leads, orders nothing more for a round; see `RoundLeader`."""
        if self._leading is not None:
            self._leading.arrive(round_, written, ordered)

    def limit(self, max_steps: int, until: int | None) -> None:
        """Let `max_steps` be the last version, and none be made beyond `until`, where this member leads."""
        if (max_steps, until) == (self._rules.max_steps, self._rules.until):
            return
        self._rules = msgspec.structs.replace(self._rules, max_steps=max_steps, until=until)
        if self._leading is not None:
            self._leading.limit(max_steps, until)

    def tell_late(self) -> None:
        if self._leading is not None:
            self._leading.tell_late()

    @property
    def reduces(self) -> bool:
        """Whether an attempt is under way, where this member leads."""
        return self._leading is not None and self._leading.reduces

    def admit(self, seat: MemberSeat) -> None:
        """Let a process take part from a later round on, if this one leads.

        One that asks again, although it was let in, has not been welcomed: the leader of then has ended. So
        under that number it never runs, and whoever is asked knows that.
        """
        leading = self._leading
        for number, other in self.members.items():
            same = (other.rank, other.address) == (seat.rank, seat.address)
            if same and (leading is None or not leading.has_heard(number)):
                self._asked_in[number] = self._asked_in.get(number, 0) + 1
                if self._asked_in[number] == ASKS:
                    self._contact_s[number] = math.inf  # it has never gone on with others
                    self._silent.discard(number)
                    self._gone.add(number)
                    self._lose(number)
        if leading is not None:
            leading.admit(seat)

    # What it hears of others

    def gone(self, number: int) -> None:
        """Note that a process has certainly ended; all that it has said was heard before."""
        self._gone.add(number)

    def received(self, sender: int, message: AnyRoundMessage, now: float) -> None:
        if sender in self._gone:
            return
        self._heard_s[sender] = now
        told = message if isinstance(message, Told) else None
        stranger = sender not in self.members and not (told and self.is_news(told, sender))
        if stranger:
            self._strangers.add(sender)
        if contact := (not self._has_leases or self._is_contact(sender, now)) and not stranger:
            self._contact_s[sender] = now
        if told is not None:
            if not stranger and self.heeds(told):
                self.leader = sender
                if (
                    contact
                    and self._has_leases
                    and told.round >= 0
                    and self.seats[self.number].host not in told.silent
                ):
                    self._touch(told, now)
            self._follow(told)
        elif isinstance(message, MemberReport) and not stranger and self._leading is not None:
            self._leading.heard(message)
            self._end_if_deposed(now)

    def _touch(self, told: Told, now: float) -> None:
        """Note that the leader goes on with these members, of whom it hears."""
        members = told.members or tuple(self.members.values())
        for seat in members:
            if seat.host not in told.silent and seat.number not in self._gone:
                # A newcomer, of which nobody may have heard yet, keeps its longer time.
                self._contact_s[seat.number] = max(now, self._contact_s.get(seat.number, now + COMES_S))

    def _is_contact(self, sender: int, now: float) -> bool:
        """Return whether a message is new: what comes first after a silence may have come long ago."""
        if now - self._contact_s.get(sender, now) < self._lease_s:
            self._again_s.pop(sender, None)
            return True
        return now - self._again_s.setdefault(sender, now) >= BEAT_S

    def _is_late(self, number: int, now: float) -> bool:
        return now - self._contact_s.setdefault(number, now + COMES_S) >= self._lease_s

    # What follows

    def drain(self, now: float) -> tuple[list[tuple[int, AnyRoundMessage]], list[Action]]:
        """Return what is to be sent now, as (member, message), and what is to be done; call it after each
        event and at least each `BEAT_S`.
        """
        sent: list[tuple[int, AnyRoundMessage]] = []
        if (stood_s := now - self._drained_s) > self._lease_s / 2:
            # This process itself stood still: what others have said meanwhile is still to be read. Whether it
            # was in contact with those that have ended is another matter.
            self._heard_s = {number: at + stood_s for number, at in self._heard_s.items()}
        self._drained_s = now
        if not self.left_behind:
            self._check_leases(now)
            if self._leading is not None:
                self._hear_itself(now, sent)
            leading = self._leading
            if self._host is not None and leading is not None and leading.round >= 0:
                self._write_down(self._host, leading.standing)
            if leading is not None and leading.stands and leading.without <= self._gone:
                self.left_behind = True  # no member is left that knows how far they went
                self._actions.append(LeaveRun())
        if not self.left_behind:
            self._say(now, sent)
        actions, self._actions = self._actions, []
        return sent, actions

    def _write_down(self, host: HostMemory, standing: HostStanding) -> None:
        """Write how the round stands before anybody is told."""
        if standing != self._standing:
            self._standing = standing
            host.write(standing)

    def _say(self, now: float, sent: list[tuple[int, AnyRoundMessage]]) -> None:
        if self._strangers:
            sent += [(stranger, self.told) for stranger in sorted(self._strangers - self._gone)]
            self._strangers.clear()
        if self._leading is None:
            report, (said, at) = self.report, self._sent.get(self.leader, (None, now))
            if report.computing and self._host is None and isinstance(said, MemberReport):
                # That it computes what was dealt to it the leader hears at a beat.
                new = {"round": report.round, "computing": report.computing, "complete": ()}
                is_due = self._has_leases and _is_due((report, at), now)
                if not is_due and msgspec.structs.replace(said, **new, attempt=-1, reduced=0) == report:
                    return
            self._send(self.leader, report, now, sent)
            return
        for number in self._leading.directed if self._has_leases else ():
            last = self._sent.get(number)
            if number != self.number and number not in self._gone and _is_due(last, now):
                self._send(number, self._leading.told(number), now, sent)

    def _send(
        self,
        number: int,
        message: AnyRoundMessage,
        now: float,
        sent: list[tuple[int, AnyRoundMessage]],
    ) -> None:
        last = self._sent.get(number)
        beats = self._has_leases and _is_due(last, now)
        if last is None or beats or (last[0] is not message and last[0] != message):
            self._sent[number] = message, now
            sent.append((number, message))

    def _check_leases(self, now: float) -> None:
        members, contact_s, lease_s = self.members, self._contact_s, self._lease_s
        # Without leases nobody is silent, and an end is certain.
        ended = {number for number in self._gone if math.isfinite(contact_s.get(number, 0.0))}
        watched = {*members, *ended} - {self.number} if self._has_leases else ended
        silent: set[int] = set()
        if self._host is None:  # else a lock in the host's memory says who leads, and nobody is left behind
            if not watched <= contact_s.keys():
                contact_s |= dict.fromkeys(watched - contact_s.keys(), now + COMES_S)
            silent = {number for number in watched if now - contact_s[number] >= lease_s}
        if silent or self._silent:
            self._silent = self._silent - watched | silent
        for number in sorted(ended):
            contact_s[number] = -math.inf if number in silent else math.inf  # so it stays
            self._lose(number)
        if self._leading is not None:
            for number in members if self._has_leases else ():
                heard_s = self._heard_s.setdefault(number, now + COMES_S)
                if number != self.number and now - heard_s >= self._lease_s:
                    self._leading.silent(number)
            return
        self._lead_if_due(now)

    def _lead_if_due(self, now: float) -> None:
        gone = self.leader in self._gone
        if gone and self._host is not None and (standing := self._host.read()) is not None:
            self._learn(standing)
        own, led_by = self.members[self.number], self.seats.get(self.leader)
        if not gone and led_by is not None and led_by.host == own.host:
            return  # it is alive, and can be ended by its launcher alone
        new = self.new
        before = [seat for seat in self.members.values() if seat.rank < own.rank and seat.number not in new]
        waits = [seat for seat in before if seat.number not in self._gone and seat.number != self.leader]
        if not gone:
            waits = [seat for seat in waits if led_by is None or seat.host != led_by.host]
        leases = len(waits) + (not gone)
        if leases == 0 or now - self._heard_s.setdefault(self.leader, now) >= leases * self._lease_s:
            self._lead(now)

    def _lose(self, number: int) -> None:
        """Have a member that has ended taken for gone, or for silent, if it may have left this one behind."""
        if self._leading is not None:
            (self._leading.silent if number in self._silent else self._leading.gone)(number)

    def _learn(self, standing: HostStanding) -> None:
        """Hear from the memory what was said while this process stood still, and who leads."""
        if (standing.round, standing.membership) > (self.round, self.membership):
            self._follow(self.told_by(standing))
        if leader_of(standing.term) not in self._gone:
            self.leader = leader_of(standing.term)

    def _lead(self, now: float) -> None:
        found = None
        if self._host is not None:
            if not self._host.take_lead():
                return  # another member leads, of which this one is going to hear
            if (found := self._host.read()) is not None:
                self._learn(found)
        report, known = self.report, self.known
        newest = max(report.term, 0 if found is None else found.term)
        term, membership = next_term(newest, self.number), report.membership
        self._leading = RoundLeader(self.number, term, known, membership, self.leader, self._rules, found)
        self._leading.know(self.seats)
        for number in self._gone:
            self._lose(number)
        for number in self.members:
            if number != self.leader:
                self._heard_s[number] = now
        self.leader = self.number

    def _hear_itself(self, now: float, sent: list[tuple[int, AnyRoundMessage]]) -> None:
        """Let the leader's own member follow it, until nothing changes any more."""
        while (leading := self._leading) is not None:
            term, heard = self._heard_itself
            report = self.report
            if report is not heard or term != leading.term:
                self._heard_itself = leading.term, report
                leading.heard(report)
            self._end_if_deposed(now)
            changed = leading.drain() if self._leading is leading else []
            for number, told in changed:
                if number == self.number:
                    self._follow(told)
                elif number not in self._gone:
                    self._send(number, told, now, sent)
            if not changed or self.left_behind:
                return

    def _end_if_deposed(self, now: float) -> None:
        if self._leading is not None and self._leading.deposed:
            self._leading = None
            self._heard_s[self.leader] = now

    def _follow(self, told: Told) -> None:
        before = set(self.members)
        for action in self.heard(told):
            if isinstance(action, LeaveRun):
                self.left_behind = True
            self._actions.append(action)
        self.seats |= self.members
        self._strangers |= before - self.members.keys()
        if self._leading is not None and leader_of(self.term) != self.number:
            self._leading = None


def _is_due(last: tuple[AnyRoundMessage, float] | None, now: float) -> bool:
    """Return whether a beat has passed; not a whole one: what was sent a little after the last look would
    else wait for two.
    """
    return last is None or now - last[1] >= BEAT_S / 2
