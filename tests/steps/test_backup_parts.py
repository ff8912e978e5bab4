"""Who computes what, and what makes a version, where a step does not wait for every replica: case by case."""

from dtrain.messages.rounds import CompletePart, Known, MemberReport, MemberSeat, RoundMade
from dtrain.state.batch_cut import Dealt
from dtrain.steps.leader import RoundLeader
from dtrain.steps.round_parts import RoundParts, RoundRules

SEATS = tuple(MemberSeat(number=each, rank=each, task=f"worker:{each}") for each in range(3))
KNOWN = Known(members=SEATS, dealt=Dealt(2, even=True))
LAST = 10


def begun(**settings):
    """The first round of three members, of whose parts two make a version."""
    rules = RoundRules(**{"replicas": 3, "max_steps": LAST, **settings})
    parts = RoundParts(KNOWN, rules, {seat.number: seat for seat in SEATS})
    parts.deal(0)
    return parts


def due(parts):
    return {number: [deal.part for deal in deals] for number, deals in parts.due.items() if deals}


def report(member, parts, round_=0, *, complete=(), late=()):
    deals = {deal.part: deal for deal in parts.due[member]}
    done = tuple(
        CompletePart(part=part, examples=1, finite=True, holder=member, place=deals[part].place)
        for part in complete
    )
    about = {"complete": done, "late": tuple(deals[part] for part in late)}
    parts.take(MemberReport(term=1, member=member, membership=0, round=round_, **about), round_)


def made_by_the_last_two(parts):
    report(2, parts, complete=[2])
    assert parts.decide() is None
    report(1, parts, complete=[1])
    made = parts.decide()
    assert [done.part for done in made.parts] == [1, 2]
    parts.go_on(made, range(3))
    parts.deal(1)


def test_who_computes_goes_on_while_the_first_that_are_complete_make_a_version():
    parts = begun()
    assert due(parts) == {0: [0], 1: [1], 2: [2]}
    made_by_the_last_two(parts)
    assert parts.version == 1
    assert due(parts) == {0: [0], 1: [3], 2: [4]}


def test_what_comes_too_late_is_settled_or_computed_again_by_the_same_member():
    for retry, follows in ((False, 5), (True, 0)):
        parts = begun(retry=retry)
        made_by_the_last_two(parts)
        report(0, parts, 1, late=[0])
        parts.deal(1, [0])
        assert due(parts)[0] == [follows]


def test_the_last_one_computes_all_parts_of_a_step():
    parts = begun()
    parts.change_members([2])
    report(2, parts, complete=[2])
    parts.deal(0)
    assert due(parts) == {2: [2, 0]}, "those of the dead come first"


def test_late_parts_are_waited_for_at_the_end_where_they_are_computed_again():
    parts = begun(retry=True, max_steps=2)
    made_by_the_last_two(parts)
    assert due(parts) == {0: [0], 1: [3]}, "parts 0 and 3 make the last version"


def test_values_that_are_assigned_have_all_that_is_under_way_computed_again():
    parts = begun()
    before = {number: tuple(deals) for number, deals in parts.due.items()}
    report(2, parts, complete=[2])
    parts.go_on(RoundMade(values=True), range(3))
    parts.deal(1)
    assert due(parts) == {0: [0], 1: [1], 2: [2]}
    assert parts.dropped[0] == before[0]
    assert set(parts.due[1]).isdisjoint(before[0] + before[1]), "which may still be written to"


def test_a_checkpoint_names_what_is_under_way_as_not_done():
    parts = begun()
    made_by_the_last_two(parts)
    assert parts.dealt == Dealt(2, 3, (0,), even=True)


def test_lanes_are_of_members_that_do_not_compute():
    rules = RoundRules(replicas=3, max_steps=LAST, shares=True, passes_silent=True)
    lead = RoundLeader(0, 1 << 20, KNOWN, 0, 0, rules)
    for number in range(3):
        lead.heard(MemberReport(term=1 << 20, member=number, membership=0, round=0, known=KNOWN))
    for number in (1, 2):
        (deal,) = lead.told(number).due
        done = CompletePart(part=deal.part, examples=1, finite=True, holder=number, place=deal.place)
        lead.heard(MemberReport(term=1 << 20, member=number, membership=0, round=0, complete=(done,)))
    assert lead.told(1).attempt.lanes == {1: (0,), 2: (1,)}
    assert lead.standing.reduces == (1, 2)
