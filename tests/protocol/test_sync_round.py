"""The newest-version rule, sentence by sentence, and against a twin that keeps every report and counts again
each time.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.config import SyncSection
from dtrain.messages import Commit, Push, Verdict
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.parameter_server.update_rules import SeenPushes, SyncRule
from dtrain.state.batch_cut import Dealt
from dtrain.steps.machine import NextVersion, StepMachine, TooFew, quota


@every_row(
    "needed, replicas, expected",
    [(3, 4, 1), (4, 4, 1), (1, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3), (3, 1, 3)],
)
def test_a_replica_contributes_once_unless_there_are_fewer_replicas_than_contributions(
    needed, replicas, expected
):
    assert quota(needed, replicas) == expected


class Made:
    """A store that notes of what each version was made."""

    optimizer = SimpleNamespace(inner=None)

    def __init__(self):
        self.versions = []

    def make(self, given):
        self.versions.append((given.version, [block for (block,) in given.blocks]))

    def shown(self, version, whole):
        return ()


def server(version=0):
    """What a server but ps:0 holds of pushes, and what it has made of them."""
    state = SimpleNamespace(version=version, max_steps=100, generation=1)
    made, begun = Made(), SimpleNamespace(state=state, until=None, term=1)
    return SyncRule(made, SeenPushes(), None, SyncSection(), begun), made


def push(rule, rank, base, gradient, incarnation=1):
    sent = Push(generation=1, incarnation=incarnation, sequence=1, base_version=base, plan_hash="")
    return rule.push("caller", f"worker:{rank}", rank, sent, [gradient], 0.0, again=False)


def commit(rule, version, contributors):
    return rule.follow(
        Commit(
            generation=1, version=version, contributors=tuple(contributors), term=1, parts=len(contributors)
        )
    )


def held_by(rule):
    return sorted((report.rank, report.incarnation, report.ordinal) for report in rule.reports())


def test_contributions_to_the_newest_version_are_held_and_later_ones_are_stale():
    rule, made = server(version=4)
    push(rule, 0, 4, "a")
    commit(rule, 4, [(0, 1, 0)])
    assert (made.versions, rule.version) == ([(4, ["a"])], 5)
    (answer,) = push(rule, 1, 4, "late")
    assert answer.message.verdict is Verdict.STALE
    assert held_by(rule) == []


def test_the_first_of_two_equal_contributions_stays():
    rule, made = server()
    push(rule, 0, 0, "first")
    push(rule, 0, 0, "second")
    commit(rule, 0, [(0, 1, 0)])
    assert made.versions == [(0, ["first"])]


def test_a_dead_replica_s_half_and_its_successor_s_are_two_contributions():
    rule, made = server()
    push(rule, 0, 0, "dead")
    push(rule, 0, 0, "alive", incarnation=2)
    commit(rule, 0, [(0, 2, 0)])
    assert made.versions == [(0, ["alive"])]


def test_a_commit_is_carried_out_once_and_in_the_order_that_it_names():
    rule, made = server()
    for rank in (2, 0, 1):
        push(rule, rank, 0, rank)
    commit(rule, 0, [(1, 1, 0), (2, 1, 0), (0, 1, 0)])
    assert commit(rule, 0, [(1, 1, 0), (2, 1, 0), (0, 1, 0)]) == []
    assert (made.versions, rule.version) == ([(0, [1, 2, 0])], 1)


@pytest.mark.parametrize(("version", "contributors"), [(1, [(0, 1, 0)]), (0, [(1, 1, 0)])])
def test_a_commit_that_cannot_be_carried_out_changes_nothing(version, contributors):
    rule, made = server()
    push(rule, 0, 0, "a")
    with pytest.raises(ValueError, match="cannot follow"):
        commit(rule, version, contributors)
    assert (rule.version, made.versions, held_by(rule)) == (0, [], [(0, 1, 0)])


def decision(parts, *, servers=1, replicas=None, live=None, whole=True, **more):
    replicas = replicas or parts
    dealer = PartDealer.of(Dealt(parts), whole=whole)
    about = {"servers": servers, "replicas": replicas, "live": frozenset(live or range(replicas)), **more}
    return StepMachine(dealer=dealer, version=0, max_steps=100, **about)


def contribute(made, rank, part, *, incarnation=1, ordinal=0, servers=None):
    """A replica's contribution arrives at these servers, ps:0 first."""
    contribution = (rank, incarnation, ordinal)
    for server in range(made.servers) if servers is None else servers:
        if server == 0:
            made.contribute(contribution, part, examples=1)
        else:
            made.report(server, contribution, made.version)
    return contribution


def test_a_version_is_made_of_every_part_of_one_batch_in_their_order():
    made = decision(3)
    contribute(made, 2, 0)
    contribute(made, 0, 2)
    assert made.decided() is None
    contribute(made, 1, 1)
    assert made.decided() == NextVersion(((2, 1, 0), (1, 1, 0), (0, 1, 0)), 3)


def test_a_part_counts_when_every_server_holds_it():
    made = decision(1, servers=2)
    contribute(made, 0, 0, servers=[0, 0])
    assert made.decided() is None
    contribute(made, 0, 0, servers=[1])
    assert made.decided() is not None


def test_halves_of_two_incarnations_never_make_one_contribution():
    made = decision(1, servers=2)
    contribute(made, 0, 0, servers=[0])
    contribute(made, 0, 0, incarnation=2, servers=[1])
    assert made.decided() is None


def test_a_part_counts_once_whoever_computed_it():
    made = decision(2)
    contribute(made, 0, 0)
    contribute(made, 1, 0)
    assert made.decided() is None
    contribute(made, 1, 1, ordinal=1)
    assert made.decided() == NextVersion(((0, 1, 0), (1, 1, 1)), 2)


def test_parts_without_examples_count_in_the_divisor_and_refused_ones_do_not():
    made = decision(4)
    contribute(made, 0, 0)
    made.settle(3, empty=True)
    made.settle(1, empty=False)
    contribute(made, 2, 2)
    assert made.decided() == NextVersion(((0, 1, 0), (2, 1, 0)), 3)


def test_a_batch_of_refused_gradients_makes_no_version():
    made = decision(2)
    made.refuse(0, 0)
    assert made.dealer.batch == 0
    made.refuse(1, 1)
    assert made.decided() is None
    assert (made.version, made.dealer.batch) == (0, 1)


def test_a_server_that_says_late_that_it_held_the_contribution_before_does_not_complete_this_one():
    made = decision(1, servers=2)
    contribute(made, 0, 0)
    made.report(1, (0, 1, 0), 0)
    made.advance(made.decided())
    contribution = contribute(made, 0, 1, servers=[0])
    made.report(1, contribution, 0)
    assert made.decided() is None
    made.report(1, contribution, 1)
    assert made.decided() == NextVersion((contribution,), 1)


def test_reports_of_an_earlier_version_change_nothing():
    made = decision(2)
    contribute(made, 0, 0)
    contribute(made, 1, 1)
    made.advance(made.decided())
    made.report(0, (1, 1, 0), 0)
    assert made.awaited() == ({0, 1}, [])


def test_with_backups_the_first_complete_parts_make_the_version():
    made = decision(2, replicas=3, whole=False)
    contribute(made, 2, 7)
    contribute(made, 0, 5)
    assert made.decided() == NextVersion(((0, 1, 0), (2, 1, 0)), 2)
    contribute(made, 1, 4)
    assert made.decided() == NextVersion(((0, 1, 0), (2, 1, 0)), 2)


def test_too_few_says_since_when_and_forgets_when_enough_are_back():
    made = decision(2, live=[0])
    assert made.shortage(5.0) == TooFew(1, 2, 5.0)
    assert made.shortage(9.0) == TooFew(1, 2, 5.0)
    made.change_members({0, 1})
    assert made.shortage(10.0) is None
    made.change_members({0})
    assert made.shortage(11.0) == TooFew(1, 2, 11.0)


def test_what_the_dead_completed_counts():
    made = decision(2)
    contribute(made, 0, 0)
    made.change_members({1})
    assert made.shortage(0.0) is None


def test_shrink_lets_those_who_live_contribute_more_parts_but_never_makes_nothing():
    made = decision(3, shrink=True)
    assert made.quota == 1
    made.change_members({0, 2})
    assert made.quota == 2
    assert made.shortage(0.0) is None
    made.change_members({0})
    assert made.quota == 3
    made.change_members(frozenset())
    assert made.shortage(0.0) == TooFew(0, 3, 0.0)


def test_while_a_contribution_is_on_its_way_the_server_that_lacks_it_is_awaited_and_not_the_replica():
    made = decision(2, servers=3)
    contribute(made, 0, 0, servers=[1])
    assert made.awaited() == ({0, 1}, [])
    contribute(made, 0, 0, servers=[0])
    assert made.awaited() == ({1}, [2])
    made.change_members({1})
    assert made.awaited() == ({1}, [])


def test_a_server_is_awaited_until_it_holds_what_ps_0_holds():
    made = decision(3, servers=2)
    contribute(made, 0, 0, servers=[0])
    contribute(made, 1, 1, servers=[0])
    for rank, awaited in ((0, [1]), (1, [])):
        contribution = (rank, 1, 0)
        made.report(1, contribution, 0)
        made.report(1, contribution, 0)
        assert made.awaited() == ({2}, awaited)


def test_a_replica_that_was_started_again_is_awaited_and_not_what_its_process_before_has_sent():
    made = decision(2, servers=2)
    contribute(made, 0, 0, servers=[0])
    assert made.awaited() == ({1}, [1])
    made.change_members({0, 1}, anew=[0])
    assert made.awaited() == ({0, 1}, [])


def test_those_who_are_lost_are_awaited_when_all_others_have_done_their_share():
    made = decision(3)
    contribute(made, 0, 0)
    contribute(made, 2, 2)
    made.change_members({0, 2})
    assert made.awaited() == ([1], [])


# Against a twin of ten obvious lines

REPORT = st.tuples(st.integers(0, 2), st.tuples(st.integers(0, 3), st.integers(1, 2)), st.integers(0, 3))
"""A server, the contribution of a rank and incarnation, its part."""


def twin_complete(reports, servers):
    """The first contribution of each part that every server has reported, ps:0 with its part."""
    complete, heard, part_of = {}, {}, {}
    for server, contribution, part in reports:
        heard.setdefault(contribution, set()).add(server)
        if server == 0:
            part_of.setdefault(contribution, part)
        if len(heard[contribution]) == servers and contribution in part_of:
            complete.setdefault(part_of[contribution], contribution)
    return complete


@settings(deadline=None, max_examples=300)
@given(st.lists(REPORT, max_size=40), st.integers(1, 3))
def test_what_is_decided_is_what_the_twin_finds(reports, servers):
    made, said = decision(4, servers=servers), []
    for server, (rank, incarnation), part in reports:
        if server < servers:
            contribution = (rank, incarnation, 0)
            said.append((server, contribution, part))
            if server == 0 and contribution not in made.contributed:
                made.contribute(contribution, part, examples=1)
            else:
                made.report(server, contribution, 0)
        complete = twin_complete(said, servers)
        assert made.complete == complete
        whole = len(complete) == 4
        assert made.decided() == (
            NextVersion(tuple(complete[part] for part in range(4)), 4) if whole else None
        )


@settings(deadline=None, max_examples=200)
@given(
    offers=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40),
    commit_at=st.sets(st.integers(0, 40), max_size=4),
)
def test_a_server_holds_one_gradient_of_each_contributor_to_the_newest_version_and_no_other(
    offers, commit_at
):
    rule, made = server()
    twin_held: dict[tuple[int, int, int], int] = {}
    for position, (rank, base) in enumerate(offers):
        if position in commit_at and twin_held:
            contributors = list(twin_held)[::2]
            commit(rule, rule.version, contributors)
            assert made.versions[-1][1] == [twin_held[each] for each in contributors]
            twin_held = {}
        if base <= rule.version:
            push(rule, rank, base, position)
            if base == rule.version:
                twin_held.setdefault((rank, 1, 0), position)
        assert held_by(rule) == sorted(twin_held)
