"""The newest-version rule, sentence by sentence, and against a twin that keeps every report and counts again each time."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.protocol.sync_round import SyncDecision, SyncRound, TooFew, quota


@pytest.mark.parametrize(
    ("needed", "replicas", "expected"), [(3, 4, 1), (4, 4, 1), (1, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3), (3, 1, 3)]
)
def test_a_replica_contributes_once_unless_there_are_fewer_replicas_than_contributions(needed, replicas, expected):
    assert quota(needed, replicas) == expected


def test_contributions_to_the_newest_version_are_held_and_later_ones_are_stale():
    held = SyncRound(version=4)
    assert held.offer((0, 1, 0), 4, "a")
    assert held.commit(4, [(0, 1, 0)]) == ["a"]
    assert held.version == 5
    assert not held.offer((1, 1, 0), 4, "late")
    assert held.held == {}


def test_the_first_of_two_equal_contributions_stays():
    held = SyncRound(version=0)
    assert held.offer((0, 1, 0), 0, "first")
    assert held.offer((0, 1, 0), 0, "second")
    assert held.commit(0, [(0, 1, 0)]) == ["first"]


def test_a_dead_replica_s_half_and_its_successor_s_are_two_contributions():
    held = SyncRound(version=0)
    held.offer((0, 1, 0), 0, "dead")
    held.offer((0, 2, 0), 0, "alive")
    assert held.commit(0, [(0, 2, 0)]) == ["alive"]


def test_a_gradient_from_the_future_is_a_broken_peer():
    held = SyncRound(version=3)
    with pytest.raises(ValueError, match="version 4, and version 3 is the newest"):
        held.offer((0, 1, 0), 4, "x")
    assert held.held == {}


def test_a_commit_is_carried_out_once_and_in_rank_order():
    held = SyncRound(version=0)
    for rank in (2, 0, 1):
        held.offer((rank, 1, 0), 0, rank)
    assert held.commit(0, [(1, 1, 0), (2, 1, 0), (0, 1, 0)]) == [0, 1, 2]
    assert held.commit(0, [(1, 1, 0), (2, 1, 0), (0, 1, 0)]) is None
    assert held.version == 1


@pytest.mark.parametrize(("version", "contributors"), [(1, [(0, 1, 0)]), (0, [(1, 1, 0)])])
def test_a_commit_that_cannot_be_carried_out_changes_nothing(version, contributors):
    held = SyncRound(version=0)
    held.offer((0, 1, 0), 0, "a")
    with pytest.raises(ValueError, match="cannot follow"):
        held.commit(version, contributors)
    assert held.missing(0, [(0, 1, 0), (1, 1, 0)]) == [(1, 1, 0)]
    assert (held.version, held.held) == (0, {(0, 1, 0): "a"})


def test_a_contribution_counts_when_every_server_holds_it():
    decision = SyncDecision(version=0, servers=2, needed=1)
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (0, 1, 0), 0)
    assert decision.decide([0, 1], now=0.0) is None
    decision.report(1, (1, 1, 0), 0)
    decision.report(1, (0, 1, 0), 0)
    assert decision.decide([0, 1], now=0.0) == ((0, 1, 0),)


def test_halves_of_two_incarnations_never_make_one_contribution():
    decision = SyncDecision(version=0, servers=2, needed=1)
    decision.report(0, (0, 1, 0), 0)
    decision.report(1, (0, 2, 0), 0)
    assert decision.decide([0], now=0.0) is None


def test_reports_of_an_earlier_version_change_nothing():
    decision = SyncDecision(version=0, servers=1, needed=1)
    decision.report(0, (0, 1, 0), 0)
    decision.committed()
    decision.report(0, (1, 1, 0), 0)
    assert decision.decide([0, 1], now=0.0) is None
    assert decision.awaited([0, 1]) == [0, 1]


def test_of_a_replica_and_its_successor_one_counts():
    decision = SyncDecision(version=0, servers=1, needed=2)
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (0, 2, 0), 0)
    assert decision.decide([0, 1], now=0.0) is None
    assert decision.awaited([0, 1]) == [1]


def test_too_few_says_since_when_and_forgets_when_enough_are_back():
    decision = SyncDecision(version=0, servers=1, needed=2)
    assert decision.decide([0], now=5.0) == TooFew(1, 2, 5.0)
    assert decision.decide([0], now=9.0) == TooFew(1, 2, 5.0)
    assert decision.decide([0, 1], now=10.0) is None
    assert decision.decide([0], now=11.0) == TooFew(1, 2, 11.0)


def test_what_the_dead_completed_counts():
    decision = SyncDecision(version=0, servers=1, needed=2)
    decision.report(0, (0, 1, 0), 0)
    assert decision.decide([1], now=0.0) is None
    decision.report(0, (1, 1, 0), 0)
    assert decision.decide([], now=0.0) == ((0, 1, 0), (1, 1, 0))


def test_shrink_makes_a_version_of_all_that_can_come_but_never_of_nothing():
    decision = SyncDecision(version=0, servers=1, needed=3, shrink=True)
    decision.report(0, (0, 1, 0), 0)
    assert decision.decide([0, 1], now=0.0) is None
    assert decision.decide([0], now=0.0) == ((0, 1, 0),)
    decision.committed()
    assert decision.decide([], now=0.0) == TooFew(0, 3, 0.0)


# Against a twin of ten obvious lines

REPORTS = st.lists(
    st.tuples(st.integers(0, 2), st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, 1)), st.integers(0, 1)), max_size=60
)


def twin(reports, version, servers, needed, per_rank):
    """The first `needed` contributions that all servers have reported, at most `per_rank` of each rank, in rank order."""
    complete, heard = [], Counter()
    for server, contribution, reported_version in dict.fromkeys(reports):
        if reported_version == version and server < servers:
            heard[contribution] += 1
            mine = sum(other[0] == contribution[0] for other in complete)
            if heard[contribution] == servers and mine < per_rank:
                complete.append(contribution)
    return tuple(sorted(complete[:needed])) if len(complete) >= needed else None


@settings(deadline=None, max_examples=300)
@given(reports=REPORTS, servers=st.integers(1, 3), needed=st.integers(1, 6), version=st.integers(0, 1))
def test_the_decision_is_the_twin_s_after_every_report(reports, servers, needed, version):
    per_rank = quota(needed, 4)
    decision = SyncDecision(version, servers, needed, per_rank)
    reports = [report for report in reports if report[0] < servers]
    for count, report in enumerate(reports, start=1):
        decision.report(*report)
        assert decision.decide(range(4), now=0.0) == twin(reports[:count], version, servers, needed, per_rank)


@settings(deadline=None, max_examples=200)
@given(reports=REPORTS, live=st.sets(st.integers(0, 3)), servers=st.integers(1, 3), needed=st.integers(1, 6))
def test_too_few_exactly_if_what_is_there_and_the_live_replicas_do_not_suffice(reports, live, servers, needed):
    decision = SyncDecision(0, servers, needed, quota(needed, 4))
    for report in reports:
        if report[0] < servers and report[2] == 0:
            decision.report(*report)
    possible = sum(c[0] not in live for c in decision.complete) + len(live) * decision.quota
    found = decision.decide(live, now=1.0)
    assert isinstance(found, TooFew) == (possible < needed)
    shrunk = SyncDecision(0, servers, needed, decision.quota, shrink=True, complete=list(decision.complete)).decide(live, now=1.0)
    assert isinstance(shrunk, TooFew) == (possible == 0)
    if isinstance(shrunk, tuple):
        assert len(shrunk) == min(needed, possible)


@settings(deadline=None, max_examples=200)
@given(
    offers=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40),
    commit_at=st.sets(st.integers(0, 40), max_size=4),
)
def test_a_server_holds_one_gradient_of_each_contributor_to_the_newest_version_and_no_other(offers, commit_at):
    held = SyncRound(version=0)
    twin_held: dict[tuple[int, int, int], int] = {}
    for position, (rank, base) in enumerate(offers):
        if position in commit_at and twin_held:
            contributors = list(twin_held)[::2]
            assert held.commit(held.version, contributors) == [twin_held[c] for c in sorted(contributors)]
            twin_held = {}
        if base <= held.version:
            assert held.offer((rank, 1, 0), base, position) == (base == held.version)
            if base == held.version:
                twin_held.setdefault((rank, 1, 0), position)
        assert held.held == twin_held


def test_more_replicas_are_waited_for_from_the_next_version_on_and_fewer_at_once():
    decision = SyncDecision(version=0, servers=1, needed=2)
    decision.resize(3)
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (1, 1, 0), 0)
    assert decision.decide([0, 1, 2], 0.0) == ((0, 1, 0), (1, 1, 0))
    decision.committed()
    decision.report(0, (0, 1, 0), 1)
    decision.report(0, (1, 1, 0), 1)
    assert decision.decide([0, 1, 2], 0.0) is None
    decision.resize(2)
    assert decision.decide([0, 1], 0.0) == ((0, 1, 0), (1, 1, 0))
