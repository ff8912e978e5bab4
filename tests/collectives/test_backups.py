"""Who computes what, and what makes a version, where a step does not wait for every replica: case by case."""

from dtrain.collectives.backups import NOBODY, BackupFit, BackupRules, GradientSlot
from dtrain.state.batch_cut import Dealt

RULES = BackupRules(parts=2, replicas=3)
RETRY = BackupRules(parts=2, replicas=3, retry=True)
LAST = 10


def begun(rules=RULES, places=5):
    fit = BackupFit([None] * places, leader=0)
    for rank in range(rules.replicas):
        fit.enter(rank)
    for rank in range(rules.replicas):
        assert fit.give(rank, rules, (), LAST)
    return fit


def parts_of(fit):
    return {used.rank: used.part for used in fit.places if used is not None}


def test_every_replica_has_a_part_of_its_own_and_the_first_that_are_complete_make_a_version():
    fit = begun()
    assert parts_of(fit) == {0: 0, 1: 1, 2: 2}
    assert not fit.decide({2}, RULES)
    assert fit.decide({2, 1}, RULES)
    assert fit.counted == [1, 2]
    fit.finish({1, 2}, RULES)
    assert (fit.version, fit.round, fit.made_by) == (1, 2, [1, 2])
    assert parts_of(fit) == {0: 0}, "who computes goes on"


def test_what_comes_too_late_is_settled_or_computed_again_by_the_same_replica():
    for rules, left in ((RULES, {}), (RETRY, {0: 0})):
        fit = begun(rules)
        fit.decide({1, 2}, rules)
        fit.finish({1, 2}, rules)
        fit.late(0, rules)
        assert parts_of(fit) == left
        surplus = begun(rules)
        surplus.decide({0, 1, 2}, rules)
        surplus.finish({0, 1, 2}, rules)
        assert parts_of(surplus) == ({2: 2} if rules.retry else {})


def test_a_part_whose_replica_died_is_dealt_again_first_and_a_complete_one_counts():
    fit = begun()
    fit.lose(0, ())
    fit.lose(1, {1})
    assert (fit.due, fit.leader) == ([0], NOBODY)
    assert fit.decide({1, 2}, RULES)
    fit.finish({1, 2}, RULES)
    assert fit.made_by == [1, 2]
    assert fit.give(2, RULES, (), LAST)
    assert parts_of(fit) == {2: 0}


def test_the_last_one_computes_all_parts_of_a_step_unless_the_spec_says_to_wait():
    for shrink in (True, False):
        rules = BackupRules(2, 3, shrink=shrink)
        fit = begun(rules)
        fit.lose(0, ())
        fit.lose(1, ())
        assert fit.give(2, rules, {2}, LAST) is shrink
        assert not fit.give(2, rules, (), LAST), "one at a time"


def test_values_that_are_assigned_have_all_that_is_under_way_computed_again():
    fit = begun()
    fit.void()
    assert (fit.round, fit.version) == (2, 0)
    fit.late(0, RULES)
    assert fit.places[:2] == [GradientSlot(0, 0), GradientSlot(1, 1, void=True)]


def test_late_parts_are_waited_for_at_the_end_where_they_are_computed_again():
    fit = begun(RETRY)
    fit.decide({1, 2}, RETRY)
    fit.finish({1, 2}, RETRY)
    assert fit.give(1, RETRY, (), 2)
    assert not fit.give(2, RETRY, (), 2), "part 0 and part 3 make the last version"


def test_a_checkpoint_names_what_is_under_way_as_not_done():
    fit = begun()
    fit.lose(1, ())
    assert fit.dealt(2) == Dealt(2, 3, (0, 1, 2), even=True)


def test_a_process_that_takes_the_place_of_another_one_has_none_of_its_parts():
    fit = begun()
    before = fit.members[1]
    fit.enter(1)
    assert fit.members[1] != before
    assert (fit.due, parts_of(fit)) == ([1], {0: 0, 2: 2})
