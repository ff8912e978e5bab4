"""The parts of one round, as the leader of replicas without servers knows them: dealt, complete, decided.

It is the step machine for replicas whose leader may change: it can be made anew at any moment from the state
of the dealer as the round began, and from what members report to compute or to have completed.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import count

import msgspec

from dtrain.messages.rounds import CompletePart, Deal, Known, MemberReport, MemberSeat, RoundMade
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.steps.machine import NextVersion, StepMachine


class RoundRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one call of `fit`, the same in every member.

    Attributes:
        replicas: T at the start.
        max_steps, until: the last version, and the one at which the leader holds training; None: none.
        needed: so many replicas must live for a round to begin; 0: any number.
        retry: whether a part that came too late is computed again.
        alone: whether the live replica of the lowest rank computes every part.
        idle: the ranks of members that compute no parts.
        shares: whether the model is so large that several members of a host reduce it.
        phases: how many phases a lane goes through, one after another, where others wait for each.
        carries: whether the last phase changes values that are there once. It may be done again, and so may
            the phase before it, which writes down at each host what makes the round; but nothing before.
        passes_silent: whether the leader goes on without a silent member of its host, which stays a member.
    """

    replicas: int
    max_steps: int
    until: int | None = None
    needed: int = 0
    retry: bool = False
    alone: bool = False
    idle: frozenset[int] = frozenset()
    shares: bool = False
    phases: int = 1
    carries: bool = False
    passes_silent: bool = False


ANYBODY = -1
SPARE_PLACES = 2
"""Of gradients, with backups: as many more than replicas begin."""


def places_of(parts: int, replicas: int, *, whole: bool) -> int:
    """Return for how many gradients a host has room."""
    return parts if whole else max(parts, replicas) + SPARE_PLACES


class RoundParts:
    """The parts of the round that is made.

    Attributes:
        live: the ranks that are dealt parts.
        version: how many rounds have made one.
        dealt: the state of the dealer as the round began.
        due: by member, what it computes or has completed, and whether it has.
        complete: by part.
        dropped: by member, what it may still compute though it is no longer due.
    """

    def __init__(self, known: Known, rules: RoundRules, seats: Mapping[int, MemberSeat]) -> None:
        """Begin a round with what is known of it; `seats` are all members that there have been, by number."""
        self._rules = rules
        self._seats = seats
        self._set_members([seat.number for seat in known.members])
        self.version, self.dealt = known.version, known.dealt
        self.due: dict[int, dict[Deal, bool]] = {}
        self.complete: dict[int, CompletePart] = {}
        self.dropped: dict[int, tuple[Deal, ...]] = {}
        self._decided: NextVersion | None = None
        self.rebuild(())

    # Members

    def _set_members(self, members: Collection[int]) -> None:
        self._members = tuple(members)
        seats = [self._seats[number] for number in self._members]
        ranks = frozenset(seat.rank for seat in seats) - self._rules.idle
        self.live = frozenset([min(ranks)]) if self._rules.alone and ranks else ranks

    def change_members(
        self,
        members: Collection[int],
        lost_hosts: Collection[str] = (),
        first: Collection[CompletePart] = (),
    ) -> None:
        """Go on with these members; what was complete at a host that is lost is computed again, but for the
        parts `first`, of which the round is made.
        """
        self._set_members(members)
        self.due = {number: due for number, due in self.due.items() if number in members}
        self.dropped = {number: deals for number, deals in self.dropped.items() if number in members}
        kept = [done for done in self.complete.values() if self._host_of(done) not in lost_hosts]
        if len(kept) < len(self.complete):
            self.rebuild([*first, *kept])
        elif self._machine.live != self.live:
            self._machine.change_members(self.live)

    def _host_of(self, done: CompletePart) -> str:
        return self._seats[done.holder].host

    def limit(self, max_steps: int, until: int | None) -> None:
        self._rules = msgspec.structs.replace(self._rules, max_steps=max_steps, until=until)
        self._machine.max_steps, self._machine.until = max_steps, until

    # Beginning, and beginning again

    def resume(
        self, reports: Iterable[MemberReport], round_: int, first: Iterable[CompletePart] = ()
    ) -> None:
        """Go on where another leader has ended, with what the members compute and have completed. The round
        is made of the parts `first`, where there are some.
        """
        reports = list(reports)
        for report in reports:
            here = report.complete if report.round == round_ else ()
            done = [Deal(each.part, round_, each.place) for each in here]
            self.due[report.member] = dict.fromkeys([*report.computing, *done], False)
            self.dropped[report.member] = report.dropped
        self.rebuild(first)
        for report in reports:
            self.take(report, round_)

    def rebuild(self, complete: Iterable[CompletePart]) -> None:
        """Begin the round again, with what members still compute or have completed."""
        rules = self._rules
        dealer = PartDealer.of(self.dealt, whole=not self.dealt.even)
        self._machine = StepMachine(
            dealer=dealer,
            version=self.version,
            replicas=rules.replicas,
            live=self.live,
            shrink=True,
            max_steps=rules.max_steps,
            until=rules.until,
            retry=rules.retry,
            rests_held=True,
        )
        self._batches = self._machine.batches
        self.complete = {}
        for number, due in self.due.items():
            rank = self._seats[number].rank
            kept = [deal for deal in due if self._resume(rank, deal.part)]
            left = [deal for deal in due if deal not in kept]
            self.dropped[number] = (*self.dropped.get(number, ()), *left)
            self.due[number] = dict.fromkeys(kept, False)
        for done in complete:
            self._resume(self._seats[done.holder].rank, done.part)
            due = self.due.get(done.holder, {})
            due |= dict.fromkeys((deal for deal in due if deal.part == done.part), True)
            self._contribute(done)

    def _resume(self, rank: int, part: int) -> bool:
        dealer = self._machine.dealer
        resumed = dealer.resume(rank, part)
        if dealer.whole:
            dealer.pushed(rank, part)
        return resumed

    # Parts

    @property
    def whole(self) -> bool:
        """Whether a step is made of one batch, for all parts of which it waits."""
        return self._machine.dealer.whole

    @property
    def passes_over(self) -> bool:
        """Whether every gradient of the batch was refused, so that the next one takes its place."""
        return self._machine.batches != self._batches

    @property
    def finished(self) -> bool:
        return self._machine.version >= self._machine.max_steps

    @property
    def computing(self) -> frozenset[int]:
        """The members that have not completed what is due."""
        return frozenset(number for number, due in self.due.items() if not all(due.values()))

    def take(self, report: MemberReport, round_: int) -> bool:
        """Note what a member has completed, once; return whether something of it came too late."""
        due = self.due.setdefault(report.member, {})
        for done in report.complete if report.round == round_ else ():
            deal = next((deal for deal in due if deal.part == done.part), None)
            if deal is not None and not due[deal]:
                due[deal] = True
                self._contribute(done)
        late = [deal for deal in report.late if due.pop(deal, None) is not None]
        for deal in late:
            self._machine.came_too_late(self._seats[report.member].rank, deal.part)
        waited = report.round == round_ and self.dropped.get(report.member, ()) != report.dropped
        if waited:
            self.dropped[report.member] = report.dropped
        return bool(late) or waited

    def _contribute(self, done: CompletePart) -> None:
        if done.part in self.complete:
            return
        self.complete[done.part] = done
        machine, rank = self._machine, self._seats[done.holder].rank
        if done.examples and not done.finite:
            machine.refuse(rank, done.part)
            return
        contributed = machine.contributed
        own = ((rank, done.holder, ordinal) for ordinal in count())
        contribution = next(each for each in own if each not in contributed)
        machine.contribute(contribution, done.part, done.examples, done.empty)

    def deal(self, round_: int, numbers: Iterable[int] | None = None) -> set[int]:
        """Deal all parts of a batch, or with backups one to each replica that computes none; return the
        members that have been dealt some.
        """
        machine, rules = self._machine, self._rules
        found: set[int] = set()
        free: dict[int, list[int]] = {}
        for number in self._members if numbers is None else numbers:
            seat, due = self._seats[number], self.due.setdefault(number, {})
            trains = seat.rank not in rules.idle
            while trains and not self.passes_over and (self.whole or all(due.values())):
                free = free or self._free_places()
                places = free.get(number) or free[ANYBODY]
                part = machine.next_part(seat.rank) if places else NO_PART
                if part == NO_PART:
                    break
                due[Deal(part, round_, places.pop())] = False
                found.add(number)
                if self.whole:
                    machine.dealer.pushed(seat.rank, part)  # so that it may be dealt another one
        return found

    def _free_places(self) -> dict[int, list[int]]:
        """Return the places of gradients that nothing is due to be written to, the least one last: by member
        those that it alone may use, after what it computes now, and under ANYBODY the others.
        """
        dealer = self._machine.dealer
        owners = {deal.place: number for number, deals in self.dropped.items() for deal in deals}
        used = {deal.place for due in self.due.values() for deal in due}
        used |= {done.place for done in self.complete.values()}
        free: dict[int, list[int]] = {ANYBODY: []}
        for place in reversed(range(places_of(dealer.parts, self._rules.replicas, whole=dealer.whole))):
            if place not in used:
                free.setdefault(owners.get(place, ANYBODY), []).append(place)
        return free

    # Versions

    def decide(self) -> RoundMade | None:
        """Return what makes the next version, once there is enough."""
        machine = self._machine
        self._decided = decided = machine.decided()
        if decided is None:
            return None
        parts = [self.complete[machine.contributed[each]] for each in decided.contributors]
        return RoundMade(parts=tuple(parts), divisor=decided.parts, refused=self.refused)

    @property
    def refused(self) -> tuple[CompletePart, ...]:
        return tuple(done for done in self.complete.values() if done.examples and not done.finite)

    def go_on(self, made: RoundMade, members: Collection[int]) -> None:
        """Begin the next round. After a void one the same batch comes again, unless it is passed over."""
        again = made.void and not self.passes_over
        if made.parts:
            assert self._decided is not None, "a version was decided"
            self._machine.advance(self._decided)
            self.version += 1
        self._decided = None
        under_way = not again and not self.whole
        for number, due in self.due.items():
            left = [deal for deal, done in due.items() if not done]
            self.due[number] = dict.fromkeys(left, False) if under_way else {}
            if not under_way:
                self.dropped[number] = (*self.dropped.get(number, ()), *left)
        self._set_members(members)
        if again:
            self.rebuild(())
            return
        self.dealt = self._machine.dealer.export()
        self.complete = {}
        self._batches = self._machine.batches
        if self._machine.live != self.live:
            self._machine.change_members(self.live)
