"""Faults that real runs had, or that a reader would fear, planted in the machines: the scenes find each of them."""

import pytest
from msgspec.structs import replace
from row_by_row import every_row
from steps import test_rounds

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
from dtrain.steps import leader as leading
from dtrain.steps.follower import CommitRound, Follower, LeaveRun, may_go_on
from dtrain.steps.leader import RoundLeader
from dtrain.steps.member import BEAT_S, HostMemory, RoundMember
from dtrain.steps.round_parts import RoundParts, RoundRules

FROM = {
    "counts_the_gone_as_agreed": 210,
    "hears_nothing_from_the_memory": 2718,
    "goes_on_without_one_that_may_reduce": 635,
    "goes_through_all_phases_alone": 2900,
}
"""The seeds to begin with, where it takes long until one finds a fault."""
MOST = 400


def counts_the_gone_as_agreed(patch):
    """Members that have ended are taken for members that ended before they went on without this one."""
    patch.setattr(RoundMember, "_lose", lambda self, number: self._leading and self._leading.gone(number))


def goes_on_in_minorities(patch):
    patch.setattr(leading, "may_go_on", lambda members, present, gone, leader: True)


def commits_when_one_lane_is_reduced(patch):
    def end(self):
        reports = [self._reports[each] for each in self._attempt.lanes if each in self._reports]
        if any(each.reduced and self._is_in_attempt(each) for each in reports):
            self._commit(self._attempt.made)
            return True
        return False

    patch.setattr(RoundLeader, "_end_attempt", end)


def keeps_what_lay_at_a_lost_host(patch):
    before = RoundParts.change_members
    patch.setattr(
        RoundParts, "change_members", lambda self, members, lost=(), first=(): before(self, members)
    )


def forgets_what_the_dead_computed(patch):
    """The parts of a member that has ended are not dealt again."""

    def change(self, members, lost=(), first=()):
        self._set_members(members)

    patch.setattr(RoundParts, "change_members", change)


def takes_a_round_for_open_that_was_committed(patch):
    """A new leader goes on from its own round, not from the newest one that is reported."""
    before = RoundLeader._go_on_from

    def go_on(self, reports):
        own = min(report.round for report in reports)
        before(self, [each for each in reports if each.round == own])

    patch.setattr(RoundLeader, "_go_on_from", go_on)


def begins_an_attempt_with_gradients_of_before(patch):
    """What is complete is kept in a round in which values were assigned."""
    before = RoundParts.go_on

    def go_on(self, made, members):
        complete = list(self.complete.values())
        before(self, made, members)
        if made.values:
            for done in complete:
                self._contribute(done)

    patch.setattr(RoundParts, "go_on", go_on)


def loses_what_comes_too_late(patch):
    before = Follower._begin

    def begin(self, round_):
        before(self, round_)
        self._late = ()

    patch.setattr(Follower, "_begin", begin)


def hears_nobody_after_it_stood_still(patch):
    before = RoundMember.drain

    def drain(self, now):
        self._drained_s = now
        return before(self, now)

    patch.setattr(RoundMember, "drain", drain)


def does_not_hold_rounds(patch):
    before = RoundLeader._commit

    def commit(self, made):
        self._rules = replace(self._rules, needed=0)
        before(self, made)

    patch.setattr(RoundLeader, "_commit", commit)


def gives_away_what_silent_members_write_to(patch):
    before = RoundLeader._found_of
    patch.setattr(RoundLeader, "_found_of", lambda self, each: replace(before(self, each), computing=()))


def hears_nothing_from_the_memory(patch):
    """A member that stood still leads from the round that it knows, though others had gone on before they ended."""
    patch.setattr(RoundMember, "_learn", lambda self, standing: None)


def goes_on_without_one_that_may_reduce(patch):
    before = RoundMember._lead

    def lead(self, now):
        before(self, now)
        if self._leading is not None:
            self._leading._found = replace(self._leading._found, reduces=())

    patch.setattr(RoundMember, "_lead", lead)


def does_not_hear_what_is_carried(patch):
    patch.setattr(Follower, "known", property(lambda self: self._known))


def goes_through_all_phases_alone(patch):
    """A leader that reduces alone begins again from the first phase, though rows are half carried."""
    before = RoundLeader._begin_attempt

    def begin(self):
        began = before(self)
        attempt = self._attempt
        if attempt is not None and self._carrying is None and attempt.lanes.keys() == {self._own}:
            self._attempt = replace(attempt, last=self._rules.phases - 1)
        return began

    patch.setattr(RoundLeader, "_begin_attempt", begin)


def makes_rows_again_that_are_carried(patch):
    before = RoundLeader._begin_attempt

    def begin(self):
        began = before(self)
        if self._attempt is not None and self._carrying is not None:
            self._attempt = replace(self._attempt, first=0, last=0)
        return began

    patch.setattr(RoundLeader, "_begin_attempt", begin)


def makes_a_carried_round_of_other_parts(patch):
    """What was complete at a host that is lost is computed again, though its rows may be in the tables."""
    before = RoundParts.change_members
    patch.setattr(
        RoundParts, "change_members", lambda self, members, lost=(), first=(): before(self, members, lost)
    )


def gives_away_what_is_still_written(patch):
    """A member that computes a part which is no longer due shares its place with another one."""

    before = RoundParts._free_places

    def places(self):
        dropped, self.dropped = self.dropped, {}
        free = before(self)
        self.dropped = dropped
        return free

    patch.setattr(RoundParts, "_free_places", places)


PLANTED = [
    (does_not_hear_what_is_carried, ["deaths_among_rows"]),
    (goes_through_all_phases_alone, ["deaths_among_rows"]),
    (makes_rows_again_that_are_carried, ["deaths_among_rows"]),
    (makes_a_carried_round_of_other_parts, ["backups_among_rows"]),
    (gives_away_what_is_still_written, ["backups_that_stand_still", "values_that_are_assigned"]),
    (gives_away_what_silent_members_write_to, ["backups_that_stand_still"]),
    (hears_nothing_from_the_memory, ["backups_that_stand_still"]),
    (goes_on_without_one_that_may_reduce, ["backups_that_stand_still"]),
    (counts_the_gone_as_agreed, ["anything"]),
    (goes_on_in_minorities, ["hosts_that_stand_still", "anything"]),
    (commits_when_one_lane_is_reduced, ["deaths"]),
    (keeps_what_lay_at_a_lost_host, ["deaths"]),
    (forgets_what_the_dead_computed, ["deaths_on_one_host"]),
    (takes_a_round_for_open_that_was_committed, ["deaths_on_one_host", "deaths"]),
    (begins_an_attempt_with_gradients_of_before, ["values_that_are_assigned"]),
    (loses_what_comes_too_late, ["backups"]),
    (hears_nobody_after_it_stood_still, ["hosts_that_stand_still"]),
    (does_not_hold_rounds, ["rounds_that_are_held"]),
]


@pytest.mark.parametrize(("plant", "scenes"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_fault_is_found(plant, scenes, monkeypatch):
    plant(monkeypatch)
    first = FROM.get(plant.__name__, 0)
    for seed in range(first, first + MOST):
        for name in scenes:
            try:
                getattr(test_rounds, name)(seed)
            except Exception:
                return
    pytest.fail(f"{plant.__name__} lived through {MOST} seeds of {scenes}")


# What needs more than chance to be found


SEATS = tuple(
    MemberSeat(number=each, rank=each, task=f"worker:{each}", host=f"host {each}") for each in range(3)
)
KNOWN = Known(members=SEATS, dealt=Dealt(3))


def follower(number=1, term=5 << 20):
    return Follower(number, KNOWN, round_=0, term=term, membership=0)


def told(term=5 << 20, number=1, **settings):
    return Told(term=term, membership=0, number=number, **{"round": 0, **settings})


def attempt(written=-1):
    return ReduceAttempt(number=7, made=RoundMade(values=True), lanes={1: (0,)}, written=written)


def test_a_member_has_reduced_only_with_the_records_of_the_leader():
    member = follower()
    member.heard(told(attempt=attempt(written=3)))
    member.reduced(7, 1)
    assert not member.report.reduced
    member.written(3)
    assert member.report.reduced


def test_a_member_heeds_no_leader_of_an_earlier_term():
    member = follower()
    member.heard(told(term=(7 << 20) + 2))
    assert member.heard(told(number=9, round=1, made=RoundMade(values=True))) == []
    assert member.round == 0


def test_a_message_that_was_overtaken_changes_nothing():
    member = follower()
    member.heard(told(number=5, due=(Deal(3, 0), Deal(4, 0))))
    member.heard(told(number=4, due=(Deal(3, 0),)))
    assert member.report.computing == ((3, 0, 0), (4, 0, 0))


def test_a_member_that_is_not_among_the_members_leaves():
    news = told(term=6 << 20, members=(SEATS[0], SEATS[2]))
    assert follower().heard(news) == [LeaveRun()]


def test_a_newcomer_begins_when_all_others_know_of_it():
    """Else two groups that know of different members could both go on after the leader's death."""
    lead = RoundLeader(0, 1 << 20, KNOWN, 0, 0, RoundRules(replicas=3, max_steps=9))
    for number in range(3):
        lead.heard(MemberReport(term=1 << 20, member=number, membership=0, round=0, known=KNOWN))
    lead.admit(MemberSeat(number=-1, rank=3, task="worker:3", host="host 3"))
    lead.arrive(0, ordered=RoundMade())
    assert lead.round == 1
    membership = lead.told(0).membership
    for number in range(3):
        assert not lead.welcome
        lead.heard(MemberReport(term=1 << 20, member=number, membership=membership, round=1))
    assert lead.welcome == {3}


def test_a_round_is_over_when_the_next_one_begins():
    member = follower()
    member.heard(told(attempt=attempt()))
    made = RoundMade(values=True)
    assert CommitRound(0, made) in member.heard(told(number=2, round=1, made=made))


def test_a_limit_that_is_set_while_a_leader_asks_holds_when_it_begins():
    lead = RoundLeader(0, 1 << 20, KNOWN, 0, 0, RoundRules(replicas=3, max_steps=9))
    lead.limit(9, until=0)
    for number in range(3):
        lead.heard(MemberReport(term=1 << 20, member=number, membership=0, round=0, known=KNOWN))
    assert lead.round == 0
    assert all(lead.told(number).due == () for number in range(3))
    lead.limit(9, until=None)
    assert [lead.told(number).due for number in range(3)] == [((0, 0, 0),), ((1, 0, 1),), ((2, 0, 2),)]


def test_who_has_a_lane_of_an_attempt_keeps_it_until_values_are_written():
    """A round without a version may come between. Until then it may still write to the side that is next."""
    seats = tuple(
        MemberSeat(number=each, rank=each, task=f"worker:{each}", host="aaabb"[each]) for each in range(5)
    )
    known = Known(members=seats, dealt=Dealt(5))
    lead = RoundLeader(0, 1 << 20, known, 0, 0, RoundRules(replicas=5, max_steps=9, shares=True))

    def hear(numbers):
        for number in numbers:
            said = lead.told(number)
            done = [
                CompletePart(part=d.part, examples=1, finite=True, holder=number, place=d.place)
                for d in said.due
            ]
            lead.heard(
                MemberReport(
                    term=1 << 20,
                    member=number,
                    membership=said.membership,
                    round=max(0, said.round),
                    complete=tuple(done),
                    known=known,
                )
            )

    hear(range(5))
    hear(range(5))
    lead.arrive(0)
    assert lead.told(1).attempt.lanes[1] == (1,)
    lead.gone(3)
    lead.gone(4)
    lead.arrive(0, ordered=RoundMade())
    assert lead.round == 1
    hear(range(3))
    lead.arrive(1)
    attempt = lead.told(1).attempt
    assert (attempt.count, attempt.lanes[1]) == (2, (1,))


@every_row(
    "members, present, gone, goes_on",
    [
        ((0, 1, 2), (0, 1), (), True),
        ((0, 1, 2), (0,), (), False),
        ((0, 1), (0,), (), True),
        ((0, 1), (1,), (), False),
        ((0, 1), (1,), (0,), True),
        ((0, 1, 2), (2,), (0, 1), True),
        ((0, 1, 2), (0,), (2,), False),
        ((0, 1, 2, 3), (1, 2), (), False),
        ((0, 1, 2, 3), (0, 2), (), True),
        ((0, 1, 2, 3), (1, 2, 3), (0,), True),
    ],
)
def test_more_than_half_go_on_or_half_with_the_leader_or_all_who_live(members, present, gone, goes_on):
    assert may_go_on(members, present, gone, leader=0) is goes_on


def silent_leads(standing):
    """A leader after the death of member 0, which takes member 2 for silent."""
    rules = RoundRules(replicas=3, max_steps=9, passes_silent=True)
    known = replace(KNOWN, dealt=Dealt(2, even=True), members=SEATS_OF_ONE_HOST)
    lead = RoundLeader(1, 2 << 20, known, 0, 0, rules, replace(standing, known=known))
    lead.gone(0)
    lead.heard(MemberReport(term=2 << 20, member=1, membership=0, round=0, known=known))
    lead.silent(2)
    return lead


SEATS_OF_ONE_HOST = tuple(replace(seat, host="") for seat in SEATS)
STANDING = HostStanding(term=1 << 20, membership=0, round=0, known=KNOWN)


def test_what_a_silent_member_may_still_write_to_stays_its_own():
    found = replace(STANDING, due={2: (Deal(2, 0, 0),)}, dropped={2: (Deal(1, 0, 1),)})
    lead = silent_leads(found)
    assert lead.round == 0
    assert {deal.place for deal in lead.told(1).due}.isdisjoint({0, 1})
    assert lead.standing.due[2] == found.due[2]
    assert lead.standing.dropped == found.dropped


def test_a_silent_member_that_may_reduce_is_waited_for():
    lead = silent_leads(replace(STANDING, reduces=(2,)))
    assert lead.round < 0
    assert lead.awaited == {2}


def test_a_member_leads_only_by_leave_of_the_memory():
    """Else one that was stopped just before it began, and one that has led meanwhile, would both lead."""
    leave, rules = [False], RoundRules(replicas=3, max_steps=9, passes_silent=True)
    known = replace(KNOWN, members=SEATS_OF_ONE_HOST)
    member = RoundMember(1, known, rules, 5.0, 0.0, term=1 << 20)
    member.share(HostMemory(lambda: leave[0], lambda: None, lambda standing: None))
    member.gone(0)
    sent, _ = member.drain(0.1)
    assert not any(isinstance(message, Told) for _, message in sent)
    leave[0] = True
    sent, _ = member.drain(0.2)
    asked = dict(sent)[2]
    member.received(2, MemberReport(term=asked.term, member=2, membership=0, round=0, known=known), 0.3)
    member.drain(0.3)
    assert member.leads_in == asked.term


def test_a_member_says_that_a_part_is_complete_and_that_it_computes_one_at_a_beat_alone():
    """The leader has dealt the part: in each round it would hear twice from every member."""
    member = RoundMember(1, KNOWN, RoundRules(replicas=3, max_steps=9), 5.0, 0.0)
    first, second = Deal(1, 0, 1), Deal(4, 1, 1)
    done = CompletePart(part=1, examples=1, finite=True, holder=1, place=1)
    made = RoundMade(parts=(done,), divisor=1)
    told = Told(term=member.term, membership=0, number=1, round=0, dealt=Dealt(3), due=(first,))

    def said(now):
        return [(to, each.round, each.complete) for to, each in member.drain(now)[0]]

    member.received(0, told, 0.0)
    said(0.0)
    member.complete(first, done, 0)
    assert said(0.01) == [(0, 0, (done,))]
    member.received(0, replace(told, number=2, round=1, version=1, due=(second,), made=made), 0.02)
    assert said(0.02) == []
    assert said(0.02 + BEAT_S) == [(0, 1, ())]
