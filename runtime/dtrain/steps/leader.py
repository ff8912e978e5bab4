"""The leader of replicas without servers: it hosts the step machine, and can be replaced at any moment.

From what each member reports it makes what each member is told (docs/design/steps.md#what-a-round-needs):

1. The parts of a round are dealt when it begins. Those of a member that has ended are dealt again, but for
   complete ones at a host where another member lives. When enough are complete, and the leader's own process
   orders nothing more for this round, an attempt at their sum begins.
2. The round is committed when every lane of one and the same attempt is reduced at every host.
3. If a member ends, its lanes go to another one of its host in the next attempt. If a stream breaks, and no
   member ends, the same gradients are summed in the next attempt. If two hosts can never sum with each other,
   the run goes on without the one that does not lead, or that has the member of the highest number. An
   attempt is abandoned only when all members with lanes have received it: else others wait for it, and for
   each other.
4. A member is left behind only by members that may go on alone, by the newest membership of which all of
   them have heard. Otherwise the leader stands, and says for whom it waits.
5. Who asks to take part does so from a round on that begins, under a number that no member has had; it begins
   once all others have heard of it.
6. A new leader has a higher term, and first hears from the members that are to go on. It knows nothing but
   their reports (docs/design/steps.md#when-the-leader-dies).
7. A round that begins with fewer live replicas than are needed is *held*: no part of it is dealt. If somebody
   asks to take part meanwhile, it is void. A round whose parts are dealt is finished by those who are left.
"""

from collections.abc import Collection, Iterable, Mapping, Set

import msgspec

from dtrain.messages.rounds import (
    HostStanding,
    Known,
    MemberReport,
    MemberSeat,
    ReduceAttempt,
    RoundMade,
    Told,
)
from dtrain.steps.follower import first_attempt, may_go_on
from dtrain.steps.round_parts import RoundParts, RoundRules

TRIES = 3
"""The number of attempts of one round that may fail between two hosts before one of them is left behind."""


class RoundLeader:
    """One leader, of one term.

    Attributes:
        term: higher than that of any leader before.
        round: -1 until it has heard from those that are to go on.
        without: the members without which it may not go on, while it stands.
        deposed: whether another leader has taken over; this one then directs no member.
    """

    def __init__(
        self,
        own: int,
        term: int,
        known: Known,
        membership: int,
        former: int,
        rules: RoundRules,
        standing: HostStanding | None = None,
    ) -> None:
        """Begin by asking the members that this one knows. `former` led before; the first one itself.
        `standing` is how the round stood, as the leader before wrote it into the memory of the host.
        """
        self._own, self.term, self._former = own, term, former
        self._rules = rules
        self._found = standing or HostStanding(term=0, membership=membership, round=0, known=known)
        self._members = {seat.number: seat for seat in known.members}
        self._membership = membership
        self._acknowledged: Collection[int] = tuple(self._members)
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        self._new: set[int] = set()
        self._asking: dict[int, MemberSeat] = {}
        self._reports: dict[int, MemberReport] = {}
        self._dirty: set[int] = set(self._members)
        self._said = 0
        self.round = -1
        self._seats = dict(self._members)
        self._informed = False
        self._made, self._side = known.made, known.side
        self._parts = RoundParts(known, rules, self._seats)
        self._held = False
        self._arrived: tuple[int, int, RoundMade | None] = -1, -1, None
        self._attempt: ReduceAttempt | None = None
        self._number = first_attempt(term)
        self._lanes: dict[int, tuple[int, ...]] = {}
        self._count = 1
        self._tried = False
        self._carrying: RoundMade | None = None
        self._failures: dict[frozenset[str], int] = {}
        self._late: tuple[int, ...] = ()
        self.stands: str | None = None
        self.without: set[int] = set()
        self.deposed = False

    # What members are told

    def drain(self) -> list[tuple[int, Told]]:
        """Return what has changed for members since the last call; newcomers are welcomed first."""
        numbers, self._dirty = sorted(self._dirty & self._members.keys() - self._new), set()
        return [(number, self.told(number)) for number in numbers]

    @property
    def directed(self) -> Set[int]:
        """The members that hear of this leader: newcomers do not before they are welcomed."""
        return self._members.keys() - self._new

    def told(self, number: int) -> Told:
        members = () if self._knows_members(number) else tuple(self._members.values())
        self._said += 1
        if self.round < 0:
            return Told(term=self.term, membership=self._membership, number=self._said, members=members)
        attempt = self._attempt
        return Told(
            term=self.term,
            membership=self._membership,
            number=self._said,
            members=members,
            new=tuple(sorted(self._new)),
            round=self.round,
            version=self._parts.version,
            side=self._side,
            due=tuple(self._parts.due.get(number, ())),
            dealt=self._parts.dealt,
            made=self._made,
            attempt=attempt if attempt is not None and number in attempt.lanes else None,
            held=len(self._parts.live) if self._held else -1,
            silent=tuple(sorted(self._silent_hosts)),
            late=self._late,
            late_parts=self.awaited_parts if self._late else (),
        )

    # What it is told of members

    def gone(self, number: int) -> None:
        """Note that a process has certainly ended, up to which this member was in contact with it."""
        self._gone.add(number)
        if number in self._members:
            self._go_on()

    def silent(self, number: int) -> None:
        """Note that nothing was heard of a member for a lease."""
        if number not in self._silent:
            self._silent.add(number)
            self._dirty |= self._members.keys()
            self._go_on()

    def know(self, seats: Mapping[int, MemberSeat]) -> None:
        """Note who has been a member: a round that is carried may have parts of those who have ended."""
        self._seats |= seats

    def admit(self, seat: MemberSeat) -> None:
        """Let another process take part, from a round on that begins later; its number is not known yet."""
        self._asking[seat.rank] = seat
        if self._held:
            self._go_on()

    def has_heard(self, number: int) -> bool:
        return number in self._reports and number not in self._new

    @property
    def welcome(self) -> frozenset[int]:
        """The newcomers that may begin, as every other member knows of them. Of a host without others the
        first one makes the memory, before the next may begin.

        If one began before, and this leader ended, two groups that know of different members could both go
        on; but where who leads next finds all members in the memory of the host.
        """
        new = self._new & self._members.keys()
        if not new or self.round < 0:
            return frozenset()
        others = self._members.keys() - self._new - self._gone
        if not (self._rules.passes_silent or all(map(self._knows_members, others))):
            return frozenset()
        first = {self._seats[number].host: number for number in sorted(new, reverse=True)}
        hosts = {self._seats[number].host for number in others}
        return frozenset(each for each in new if self._seats[each].host in hosts or each in first.values())

    def host_members(self, number: int) -> list[int]:
        """Return the members that have the memory of a newcomer's host."""
        host = self._seats[number].host
        return [each for each in sorted(self.directed) if self._seats[each].host == host]

    def _knows_members(self, number: int) -> bool:
        report = self._reports.get(number)
        return report is not None and report.membership == self._membership and self.round >= 0

    @property
    def awaited(self) -> frozenset[int]:
        """The members that have not said, or done, what the next decision needs."""
        if self.round < 0:
            return frozenset(self._members.keys() - self._gone - self._reports.keys())
        if self._attempt is not None:
            return frozenset(each for each in self._attempt.lanes if not self._is_reduced(each))
        return self._parts.computing

    @property
    def reduces(self) -> bool:
        """Whether an attempt is under way."""
        return self._attempt is not None

    def tell_late(self) -> None:
        """Tell all members for whom they wait, after they have waited for long."""
        late = tuple(sorted(self.awaited))
        if late != self._late and self.round >= 0:
            self._late = late
            self._dirty |= self._members.keys()

    @property
    def awaited_parts(self) -> tuple[int, ...]:
        """The parts that are computed and not complete, where nothing else is awaited."""
        if self.round < 0 or self._attempt is not None:
            return ()
        return tuple(deal.part for due in self._parts.due.values() for deal, done in due.items() if not done)

    def heard(self, report: MemberReport) -> None:
        self.deposed = self.deposed or report.term > self.term
        if report.term != self.term or report.member not in self._members or self.deposed:
            return
        number = report.member
        self._silent.discard(number)
        if number in self._new:
            self._new.discard(number)
            self._dirty |= self._members.keys()  # it may lead
        before = self._reports.get(number)
        self._reports[number] = report
        if self.round >= 0:
            if before is None or before.membership != report.membership:
                self._dirty.add(number)  # it is not told of the members again
            if self._parts.take(report, self.round):  # something came too late, and may be dealt again
                self._dirty.add(number)
                self._deal()
            elif not self._parts.whole:
                self._deal([number])
        self._go_on()

    # What the process that leads orders

    def arrive(self, round_: int, written: int = -1, ordered: RoundMade | None = None) -> None:
        """Note that the leader's own process orders nothing more for this round.

        Args:
            written: the position of its newest record, which a member needs before it has reduced.
            ordered: what the round is to be: void, with values or without; None: the parts decide.
        """
        self._arrived = round_, written, ordered
        if self.round >= 0:
            self._go_on()

    def limit(self, max_steps: int, until: int | None) -> None:
        """Let `max_steps` be the last version, and none be made beyond `until` for now."""
        self._rules = msgspec.structs.replace(self._rules, max_steps=max_steps, until=until)
        self._parts.limit(max_steps, until)
        if self.round >= 0:
            self._deal()
            self._go_on()

    # Going on

    def _go_on(self) -> None:
        self.stands = None
        if self.round < 0:
            if not self._began():
                return
        else:
            self._note_acknowledged()
            lost = self._lost
            if lost and not self._remove(lost):
                return
        while self._begin_attempt() if self._attempt is None else self._end_attempt():
            pass

    @property
    def _silent_hosts(self) -> set[str]:
        own = self._members[self._own].host if self._own in self._members else None
        silent = self._silent & self._members.keys() - self._gone
        return {self._members[number].host for number in silent} - {own}

    @property
    def _absent(self) -> set[int]:
        """The silent members of this host without which the leader goes on.

        They stay members and keep their parts, as they may still write the gradients of these. The leader
        waits for a silent member that may reduce.
        """
        if not (self._silent and self._rules.passes_silent):
            return set()
        host = self._seats[self._own].host
        waits = self._found.reduces if self.round < 0 else ()
        silent = self._silent & self._members.keys() - self._gone - set(waits)
        return {number for number in silent if self._seats[number].host == host}

    @property
    def standing(self) -> HostStanding:
        """The round as the next leader needs it that hears nothing of some members of this host."""
        parts = self._parts
        return HostStanding(
            term=self.term,
            membership=self._membership,
            round=self.round,
            known=Known(
                members=tuple(self._members.values()),
                version=parts.version,
                side=self._side,
                dealt=parts.dealt,
                made=self._made,
                begun=not self._held,
            ),
            due={number: tuple(due) for number, due in parts.due.items() if due},
            dropped={number: deals for number, deals in parts.dropped.items() if deals},
            reduces=tuple(self._lanes) if self._tried else (),
        )

    def _found_of(self, number: int) -> MemberReport:
        """Return what a silent member would report at most, as the leader before has written."""
        found = self._found
        return MemberReport(
            term=self.term,
            member=number,
            membership=found.membership,
            round=found.round,
            computing=found.due.get(number, ()),
            dropped=found.dropped.get(number, ()),
            known=found.known,
        )

    @property
    def _lost(self) -> set[int]:
        gone = self._gone & self._members.keys()
        if not self._silent:
            return gone
        hosts = self._silent_hosts
        return gone | {number for number, seat in self._members.items() if seat.host in hosts}

    def _note_acknowledged(self) -> None:
        if not self._informed and all(map(self._knows_members, self._members.keys() - self._gone)):
            self._informed = True
            self._acknowledged = tuple(self._members)

    def _remove(self, lost: Set[int]) -> bool:
        """Go on without members, if that is allowed; return whether it is."""
        if not may_go_on(self._acknowledged, self._members.keys() - lost, self._gone, self._own):
            self._stand(lost)
            return False
        for number in lost:
            del self._members[number]
        self._change_membership()
        here = {seat.host for number, seat in self._members.items() if number not in self._new}
        first = () if self._carrying is None else self._carrying.parts
        self._parts.change_members(self._members, {self._seats[number].host for number in lost} - here, first)
        self._abandon()
        return True

    def _change_membership(self) -> None:
        self._membership += 1
        self._informed = False
        self._dirty |= self._members.keys()

    def _stand(self, lost: Set[int]) -> None:
        names = ", ".join(self._seats[number].task for number in sorted(lost - self._gone))
        self.without = set(lost)
        self.stands = f"too few members can go on without {names}, of which nothing is heard"

    def _began(self) -> bool:
        """Begin when every member that is not silent has answered, if these may go on alone."""
        absent = self._absent
        present = self._members.keys() - self._lost - absent
        if not present <= self._reports.keys():
            return False
        reports = [self._reports[number] for number in present] + [*map(self._found_of, sorted(absent))]
        newest = max(reports, key=lambda report: report.membership)
        members = {seat.number: seat for seat in _known(newest).members}
        taking_part = [report for report in reports if report.member in members]
        there = {report.member for report in taking_part}
        if self._own not in there:
            self.deposed = True
            return False
        oldest = min(taking_part, key=lambda report: report.membership)
        base = [seat.number for seat in _known(oldest).members]
        if not may_go_on(base, there, self._gone, self._former):
            self._seats |= members
            self._stand(members.keys() - there)
            return False
        self._acknowledged = base
        self._seats |= members
        self._members = {number: seat for number, seat in members.items() if number in there}
        self._membership = newest.membership
        self._change_membership()
        self._go_on_from(taking_part)
        return True

    def _go_on_from(self, reports: Collection[MemberReport]) -> None:
        """Take over the round of the leader before, which may have dealt all parts or none."""
        self.round = max(report.round for report in reports)
        newest = [report for report in reports if report.round == self.round]
        base = _known(newest[0])
        self._made, self._side = base.made, base.side
        known = msgspec.structs.replace(base, members=tuple(self._members.values()))
        self._parts = RoundParts(known, self._rules, self._seats)
        found = (_known(report).carrying for report in newest)
        self._carrying = next((made for made in found if made is not None), None)
        self._parts.resume(reports, self.round, () if self._carrying is None else self._carrying.parts)
        begun = any(_known(report).begun for report in newest)
        self._held = len(self._parts.live) < self._rules.needed and not begun
        self._deal()
        self._dirty |= self._members.keys()

    def _deal(self, numbers: Iterable[int] | None = None) -> None:
        if not self._held and self._attempt is None:
            absent = self._absent
            there = [each for each in self._members if each not in absent] if numbers is None else numbers
            self._dirty |= self._parts.deal(self.round, there)

    # Attempts

    @property
    def _has_newcomers(self) -> bool:
        return any(seat.rank not in self._ranks for seat in self._asking.values())

    @property
    def _ranks(self) -> set[int]:
        return {seat.rank for seat in self._members.values()}

    def _begin_attempt(self) -> bool:
        """Take the next decision; return whether there was one."""
        parts = self._parts
        round_, written, ordered = self._arrived
        arrived = round_ == self.round
        made = ordered if arrived and ordered is not None else None
        if self._carrying is not None:
            made = self._carrying if parts.decide() is not None else None
        elif made is None and self._held:
            if len(parts.live) >= self._rules.needed:
                self._held = False
                self._dirty |= self._members.keys()
                self._deal()
                return True
            made = RoundMade() if self._has_newcomers else None
        elif made is None and parts.passes_over:
            made = RoundMade(refused=parts.refused)  # every gradient of the batch
        elif made is None and (arrived or not parts.whole):
            made = parts.decide()
        if made is None:
            return False
        if made.void and not made.values:
            self._commit(made)
            return True
        lanes = self._share()
        if lanes != self._lanes:  # streams are those of an attempt from round to round
            self._number += 1
            self._lanes = lanes
        self._tried = True
        last = self._rules.phases - 1
        first, alone = (last - 1 if self._carrying is not None else 0), lanes.keys() == {self._own}
        # Alone it goes through all phases at once, but for those that nothing may begin again.
        until = first if not alone or self._carrying is not None else last - 2 * self._rules.carries
        self._attempt = ReduceAttempt(
            number=self._number,
            made=made,
            lanes=lanes,
            count=self._count,
            first=first,
            last=last if made.void else until,
            written=written,
        )
        self._dirty |= lanes.keys()
        return True

    def _share(self) -> dict[int, tuple[int, ...]]:
        """Return the lanes of members: every host has all of them. Members that do not compute come first.
        With backups a member that computes has none, unless all of its host compute.
        """
        if not self._rules.shares and len({seat.host for seat in self._members.values()}) == 1:
            return {self._own: (0,)}
        by_host: dict[str, list[int]] = {}
        busy = self._parts.computing
        order = sorted(
            self._members.values(),
            key=lambda seat: (seat.number in self._new, seat.number in busy, seat.rank),
        )
        for seat in order:
            by_host.setdefault(seat.host, []).append(seat.number)
        if not self._parts.whole:
            keep = self._lanes.keys() if self._tried else set()
            idle = self._members.keys() - busy - self._absent - self._new
            by_host = {
                host: [each for each in numbers if each in idle or each in keep] or numbers
                for host, numbers in by_host.items()
            }
        if not self._tried:
            self._count = min(map(len, by_host.values())) if self._rules.shares else 1
        lanes: dict[int, tuple[int, ...]] = {}
        for numbers in by_host.values():
            held = {number: self._lanes.get(number, ()) if self._tried else () for number in numbers}
            free = sorted(set(range(self._count)) - {lane for each in held.values() for lane in each})
            for place, lane in enumerate(free):
                number = numbers[place % len(numbers)]
                held[number] = (*held[number], lane)
            lanes |= {number: own for number, own in held.items() if own}
        return lanes

    def _is_reduced(self, number: int) -> bool:
        report = self._reports.get(number)
        assert self._attempt is not None, "the caller has looked"
        return report is not None and report.reduced > self._attempt.last and self._is_in_attempt(report)

    def _is_in_attempt(self, report: MemberReport) -> bool:
        return (report.round, report.attempt) == (self.round, self._number)

    def _end_attempt(self) -> bool:
        """Commit the round, or give the attempt up; return whether it has ended."""
        attempt = self._attempt
        assert attempt is not None, "the caller has looked"
        reports = [self._reports[number] for number in attempt.lanes if number in self._reports]
        if len(reports) < len(attempt.lanes) or not all(map(self._is_in_attempt, reports)):
            return False  # for a member that knows no such attempt others wait in vain, and for each other
        failed = [report for report in reports if report.failed]
        if failed:
            return self._give_up(failed)
        if not all(report.reduced > attempt.last for report in reports):
            return False
        phase = attempt.last + 1
        if phase >= self._rules.phases:
            self._commit(attempt.made)
            return True
        self._attempt = msgspec.structs.replace(attempt, first=phase, last=phase)
        if self._rules.carries and phase == self._rules.phases - 2:
            self._carrying = attempt.made
        self._dirty |= attempt.lanes.keys()
        return False

    def _give_up(self, failed: Iterable[MemberReport]) -> bool:
        own = self._seats[self._own].host
        blamed = [(report.member, report.blamed) for report in failed if report.blamed in self._members]
        pairs = {frozenset((self._seats[one].host, self._seats[other].host)) for one, other in blamed}
        for pair in sorted(pairs, key=sorted):  # several lanes between two hosts fail together
            self._failures[pair] = self._failures.get(pair, 0) + 1
            if self._failures[pair] >= TRIES and len(pair) == 2:
                self._failures = {}
                return self._remove(self._later_of(pair - {own}))
        self._abandon()
        return True

    def _later_of(self, hosts: Set[str]) -> set[int]:
        """Return the members of the host that has the one of the highest number."""
        last = max(number for number, seat in self._members.items() if seat.host in hosts)
        host = self._members[last].host
        return {number for number, seat in self._members.items() if seat.host == host}

    def _abandon(self) -> None:
        self._number += 1
        if self._attempt is not None:
            self._dirty |= self._attempt.lanes.keys()
        self._attempt = None
        self._deal()

    # The next round

    def _commit(self, made: RoundMade) -> None:
        self.round += 1
        if writes := bool(made.parts or made.values):
            self._tried = False  # else who has a lane of an attempt may still write to the side that is next
        self._side += writes
        self._made, self._attempt, self._carrying = made.without_sums(), None, None
        self._failures, self._late = {}, ()
        self._let_in()
        self._parts.go_on(made, self._members)
        self._held = len(self._parts.live) < self._rules.needed
        self._deal()
        self._dirty |= self._members.keys()

    def _let_in(self) -> None:
        """Make members of those that have asked, but for replicas whose predecessors still are."""
        for rank, seat in list(self._asking.items()):
            if rank in self._ranks:
                continue
            del self._asking[rank]
            number = 1 + max(*self._seats, *self._gone, self._former)
            self._members[number] = self._seats[number] = msgspec.structs.replace(seat, number=number)
            self._new.add(number)
            self._change_membership()


def _known(report: MemberReport) -> Known:
    assert report.known is not None, "a member answers a leader that asks with all that it knows"
    return report.known
