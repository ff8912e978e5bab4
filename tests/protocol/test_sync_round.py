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
    decision = SyncDecision(version=0, servers=2, needed=1, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (0, 1, 0), 0)
    assert decision.decide(now=0.0) is None
    decision.report(1, (1, 1, 0), 0)
    decision.report(1, (0, 1, 0), 0)
    assert decision.decide(now=0.0) == ((0, 1, 0),)


def test_halves_of_two_incarnations_never_make_one_contribution():
    decision = SyncDecision(version=0, servers=2, needed=1, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    decision.report(1, (0, 2, 0), 0)
    assert decision.decide(now=0.0) is None


def test_reports_of_an_earlier_version_change_nothing():
    decision = SyncDecision(version=0, servers=1, needed=1, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    decision.committed()
    decision.report(0, (1, 1, 0), 0)
    assert decision.decide(now=0.0) is None
    assert decision.awaited() == ({0, 1}, [])


def test_of_a_replica_and_its_successor_one_counts():
    decision = SyncDecision(version=0, servers=1, needed=2, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (0, 2, 0), 0)
    assert decision.decide(now=0.0) is None
    assert decision.awaited() == ({1}, [])


def test_too_few_says_since_when_and_forgets_when_enough_are_back():
    decision = SyncDecision(version=0, servers=1, needed=2, live={0})
    assert decision.decide(now=5.0) == TooFew(1, 2, 5.0)
    assert decision.decide(now=9.0) == TooFew(1, 2, 5.0)
    decision.members_changed({0, 1})
    assert decision.decide(now=10.0) is None
    decision.members_changed({0})
    assert decision.decide(now=11.0) == TooFew(1, 2, 11.0)


def test_what_the_dead_completed_counts():
    decision = SyncDecision(version=0, servers=1, needed=2, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    decision.members_changed({1})
    assert decision.decide(now=0.0) is None
    decision.report(0, (1, 1, 0), 0)
    decision.members_changed(())
    assert decision.decide(now=0.0) == ((0, 1, 0), (1, 1, 0))


def test_shrink_makes_a_version_of_all_that_can_come_but_never_of_nothing():
    decision = SyncDecision(version=0, servers=1, needed=3, shrink=True, live={0, 1})
    decision.report(0, (0, 1, 0), 0)
    assert decision.decide(now=0.0) is None
    decision.members_changed({0})
    assert decision.decide(now=0.0) == ((0, 1, 0),)
    decision.committed()
    decision.members_changed(())
    assert decision.decide(now=0.0) == TooFew(0, 3, 0.0)


def test_while_a_contribution_is_on_its_way_the_server_that_lacks_it_is_awaited_and_not_the_replica():
    decision = SyncDecision(version=0, servers=3, needed=2, live={0, 1})
    decision.report(1, (0, 1, 0), 0)
    assert decision.awaited() == ({0, 1}, [])
    decision.report(0, (0, 1, 0), 0)
    assert decision.awaited() == ({1}, [2])
    decision.members_changed({1})
    assert decision.awaited() == ({1}, [])


# Against a twin of ten obvious lines

CONTRIBUTION = st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, 1))
REPORT = st.tuples(st.integers(0, 2), CONTRIBUTION, st.sampled_from([0, 0, 0, 1]))
HISTORY = st.lists(REPORT | REPORT | REPORT | REPORT | st.sets(st.integers(0, 3)) | st.none(), max_size=60)
"""What a server reports of a version of this age, which replicas live from now on, or None: the version is made."""


def twin_complete(reports, version, servers, per_rank):
    """What all servers have reported of a version, in the order of the last reports, and at most `per_rank` of each rank."""
    complete, heard = [], Counter()
    for _, contribution, reported_version in dict.fromkeys(reports):
        if reported_version == version:
            heard[contribution] += 1
            mine = sum(other[0] == contribution[0] for other in complete)
            if heard[contribution] == servers and mine < per_rank:
                complete.append(contribution)
    return complete


def twin_possible(reports, live, version, servers, per_rank):
    """How many contributions can come: those that are complete of ranks that are gone, and all that those who live may send."""
    every = twin_complete(reports, version, servers, per_rank)
    return sum(contribution[0] not in live for contribution in every) + len(live) * per_rank


def twin_awaited(reports, live, version, servers, per_rank):
    """Of the live ranks that owe a contribution: those with none under way; the servers that lack what ps:0 holds of them."""
    done = Counter(contribution[0] for contribution in twin_complete(reports, version, servers, per_rank))
    owing = {rank for rank in live if done[rank] < per_rank}
    heard = {(contribution, server) for server, contribution, reported_version in reports if reported_version == version}
    half = [(c, s) for c, from_server in heard if from_server == 0 for s in range(servers) if c[0] in owing and (c, s) not in heard]
    return owing - {contribution[0] for contribution, _ in half}, sorted({server for _, server in half})


@settings(deadline=None, max_examples=400)
@given(history=HISTORY, servers=st.integers(1, 3), needed=st.integers(1, 6), shrink=st.booleans())
def test_what_is_counted_is_what_the_twin_finds_after_every_report_and_every_change_of_members(history, servers, needed, shrink):
    per_rank, live, version, reports = quota(needed, 4), set(range(4)), 0, []
    decision = SyncDecision(version, servers, needed, per_rank, shrink, live)
    for happened in history:
        if isinstance(happened, set):
            live = happened
            decision.members_changed(live)
        elif happened is None:
            decision.committed()
            version += 1
        elif happened[0] < servers:
            server, contribution, age = happened
            reports.append((server, contribution, version - age))
            decision.report(*reports[-1])
        assert decision.awaited() == twin_awaited(reports, live, version, servers, per_rank)
        possible = twin_possible(reports, live, version, servers, per_rank)
        enough = min(needed, possible) if shrink and possible else needed
        complete = twin_complete(reports, version, servers, per_rank)
        found = decision.decide(now=0.0)
        if len(complete) >= enough:
            assert found == tuple(sorted(complete[:enough]))
        else:
            assert found == (None if possible >= enough else TooFew(possible, needed, 0.0))


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
    decision = SyncDecision(version=0, servers=1, needed=2, live={0, 1, 2})
    decision.resize(3)
    decision.report(0, (0, 1, 0), 0)
    decision.report(0, (1, 1, 0), 0)
    assert decision.decide(0.0) == ((0, 1, 0), (1, 1, 0))
    decision.committed()
    decision.report(0, (0, 1, 0), 1)
    decision.report(0, (1, 1, 0), 1)
    assert decision.decide(0.0) is None
    decision.resize(2)
    decision.members_changed({0, 1})
    assert decision.decide(0.0) == ((0, 1, 0), (1, 1, 0))
