"""Who may go on, whom a host heeds, and what a new leader takes for made: case by case."""

import msgspec
import pytest
from row_by_row import every_row

from dtrain.collectives.between_hosts.agent import Agent
from dtrain.collectives.between_hosts.follower import (
    UNRECORDED,
    Apply,
    BeginAttempt,
    ComputeParts,
    Following,
    HoldStep,
    LeftBehind,
    Vote,
)
from dtrain.collectives.between_hosts.leader import TRIES, LeadingHost
from dtrain.messages.replicas import Direction, PartFacts, Seat
from dtrain.steps.follower import may_go_on, next_term

HOSTS = (0, 1, 2)
FIRST, SECOND = next_term(0, 0), next_term(next_term(0, 0), 1)


def seats(host):
    return [Seat(rank=host, task=f"worker:{host}", address=f"10.0.0.{host}:7")]


def promised(host, hosts=HOSTS):
    return Vote.first(host, {each: tuple(seats(each)) for each in hosts})


def facts(part):
    return PartFacts(part=part, examples=4, finite=True, rank=part)


def directed(**changes):
    due = {host: (host,) for host in HOSTS}
    return msgspec.structs.replace(
        Direction(term=FIRST, membership=1, hosts=HOSTS, step=0, due=due), **changes
    )


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


def test_terms_grow_and_no_two_hosts_share_one():
    terms = [next_term(newest, host) for newest in (0, FIRST, SECOND) for host in HOSTS]
    assert len(set(terms)) == len(terms)
    assert all(next_term(term, 0) > term for term in terms)


def test_a_host_computes_begins_and_applies_as_the_leader_directs():
    host = Following(promised(1))
    assert host.heard(directed()) == [ComputeParts((1,))]
    assert host.heard(directed()) == []
    host.complete(facts(1))
    told = directed(attempt=7, parts=(facts(0), facts(1), facts(2)), seats={1: tuple(seats(1))})
    assert host.heard(told) == [BeginAttempt(0, 7, HOSTS, told.due, told.parts, told.seats)]
    host.has_mean(7)
    assert (host.state.attempt, host.state.has_mean, host.state.step) == (7, True, 0)
    assert host.heard(directed(step=1)) == [Apply(0, told.parts), ComputeParts((1,))]
    assert (host.state.attempt, host.state.has_mean, host.state.step) == (-1, False, 1)


def test_the_mean_of_an_attempt_that_was_given_up_is_not_that_of_the_next():
    host = Following(promised(1))
    host.heard(directed(attempt=7))
    host.heard(directed(attempt=8))
    host.has_mean(7)
    assert not host.state.has_mean
    host.failed(7)
    assert not host.state.failed
    host.heard(directed(attempt=7))
    assert host.state.attempt == 8


def test_a_host_that_has_answered_a_new_leader_applies_nothing_for_the_former_one():
    host = Following(promised(2))
    host.heard(directed(attempt=7))
    host.has_mean(7)
    assert host.heard(Direction(term=SECOND, membership=1, hosts=HOSTS)) == []
    assert host.heard(directed(step=1)) == []
    assert host.state.term == SECOND
    assert host.heard(directed(step=1, term=SECOND)) == [Apply(0, ()), ComputeParts((2,))]


def test_a_question_changes_no_membership_and_a_leader_that_was_left_behind_is_not_answered():
    host = Following(promised(2))
    host.heard(directed(membership=2, hosts=(0, 2)))
    assert host.heard(Direction(term=SECOND, membership=9, hosts=(1, 2))) == []
    assert (host.state.term, host.state.membership, host.hosts) == (FIRST, 2, (0, 2))
    assert host.heard(Direction(term=next_term(SECOND, 0), membership=0, hosts=HOSTS)) == []
    assert (host.state.membership, host.hosts) == (2, (0, 2))


def test_a_host_hears_that_it_was_left_behind_from_any_leader():
    host = Following(promised(1))
    host.heard(Direction(term=SECOND, membership=0, hosts=HOSTS))
    assert host.heard(directed(membership=2, hosts=(0, 2))) == [LeftBehind()]


def follower(host, until_s, **changes):
    """A host that has heard its leader, host 0, each second, and nobody else."""
    made = Agent(promised(host), 3, 5.0, 0.0)
    for second in range(until_s + 1):
        made.received(0, directed(**changes), float(second))
        made.drain(float(second))
    return made


def ended(made, now, *hosts):
    """What is to be done as hosts are found to have ended."""
    for host in hosts:
        made.gone(host)
    return made.drain(now)[1]


def test_the_last_host_goes_on_if_it_was_in_contact_up_to_the_end_of_all_others():
    """With those of which its leader has heard, too."""
    made = follower(2, 6)
    assert LeftBehind() not in ended(made, 10.9, 0, 1)
    assert made.hosts == (2,)


@pytest.mark.parametrize("silent", [(), (1,)], ids=["no contact with any", "none of the leader with one"])
def test_a_host_ends_where_others_may_have_gone_on_without_it_before_their_end(silent):
    made = follower(2, 6, silent=silent)
    assert ended(made, 6.1 if silent else 11.0, 0, 1) == [LeftBehind()]
    assert made.vote.left_behind


def test_more_than_half_go_on_without_a_host_that_ended_out_of_contact():
    made = follower(1, 0)
    assert ended(made, 5.0, 0) == []
    made.received(2, state(2, membership=1), 5.0)
    made.drain(5.0)
    assert (made.hosts, made.left_behind) == ((1, 2), False)


def test_another_replica_knows_with_whom_its_host_has_had_no_contact():
    made = follower(2, 0)
    made.drain(5.0)
    other = Agent(made.vote.spoken_by(2), 3, 5.0, 5.0)
    assert ended(other, 5.1, 0, 1) == [LeftBehind()]


def test_a_host_that_is_dropped_is_told_at_once_and_whenever_it_is_heard_of():
    made = follower(1, 0)
    without = directed(membership=2, hosts=(0, 1))
    made.received(0, without, 0.2)
    assert (2, without) in made.drain(0.2)[0]
    assert 2 not in dict(made.drain(0.3)[0])
    made.received(2, state(2), 0.4)
    assert (2, without) in made.drain(0.4)[0]


def test_a_host_hears_that_it_was_left_behind_from_one_that_it_had_itself_dropped():
    """Both groups have made as many changes; only the later term has more than half of the hosts."""
    made = Following(promised(0))
    made.heard(directed(hosts=(0, 1), membership=2))
    later = directed(term=next_term(FIRST, 2), hosts=(1, 2))
    assert made.heard(msgspec.structs.replace(later, step=-1, hosts=HOSTS)) == []
    assert made.heard(later) == [LeftBehind()]
    dropped = Agent(promised(0), 3, 5.0, 0.0)
    dropped.received(1, directed(term=SECOND, hosts=(0, 1)), 0.1)
    dropped.received(2, directed(term=next_term(SECOND, 2), hosts=(1, 2)), 0.2)
    assert LeftBehind() in dropped.drain(0.2)[1]


def test_a_leader_that_woke_up_late_leaves_nobody_behind_who_goes_on_under_another_one():
    """What it has heard of the others before is old, so it may take itself and one of them for more than half."""
    made = Following(promised(2))
    made.heard(directed(term=SECOND, hosts=(1, 2)))
    assert made.heard(directed(membership=2, hosts=(0, 1))) == []


def test_a_host_that_goes_on_without_this_one_is_no_contact():
    made = follower(2, 4, silent=(1,))
    made.received(1, state(1, hosts=(0, 1)), 4.0)
    assert ended(made, 5.0, 0, 1) == [LeftBehind()]


def test_what_comes_first_after_a_silence_may_be_old_and_is_no_contact():
    made = follower(2, 0)
    made.received(0, directed(), 9.0)
    assert ended(made, 9.1, 0, 1) == [LeftBehind()]
    made = follower(2, 0)
    for tenth in range(90, 100):
        made.received(0, directed(), tenth / 10)
    assert LeftBehind() not in ended(made, 10.0, 0, 1)


def test_a_leader_that_was_deposed_is_not_followed_again_by_what_comes_late():
    made = Agent(promised(2), 3, 5.0, 0.0)
    made.received(0, directed(), 0.1)
    later = directed(term=SECOND, membership=2)
    made.received(1, later, 0.2)
    made.received(0, directed(attempt=9), 0.3)
    assert made.leader == 1
    made.received(7, state(7, hosts=(7,)), 0.4)
    assert (7, later) in made.drain(0.4)[0]


def test_a_host_has_a_mean_only_with_all_records_that_the_attempt_needs():
    made = Following(promised(1))
    made.heard(directed(attempt=7, written=5))
    made.has_mean(7)
    made.written(4)
    assert not made.state.has_mean
    made.written(5)
    assert made.state.has_mean


def test_a_new_host_is_sent_the_variables_only_when_all_others_have_heard_of_it():
    """Else, if the leader ended, those who know of it and those who do not could both go on."""

    def there(host, membership, **changes):
        return state(host, membership=membership, parts=(facts(host),), arrived=UNRECORDED, **changes)

    made = leader(0, 0, *(state(host) for host in HOSTS))
    made.admit(asked_in(3, 3))
    for host in HOSTS:
        made.heard(there(host, 1))
    attempt = made.direction.attempt
    for host in HOSTS:
        made.heard(there(host, 1, attempt=attempt, has_mean=True))
    assert (made.direction.step, made.direction.hosts) == (1, (*HOSTS, 3))
    for host in HOSTS:
        assert made.welcome == frozenset()
        made.heard(state(host, membership=2, hosts=(*HOSTS, 3), step=1))
    assert made.welcome == {3}


def test_a_host_is_left_behind_by_a_later_leader_of_as_many_changes_of_membership():
    host = Following(promised(0))
    host.heard(Direction(term=FIRST, membership=1, hosts=(0, 1), step=0))
    told = Direction(term=SECOND, membership=1, hosts=(1, 2), step=0)
    assert host.heard(told) == [LeftBehind()]


def leader(host, former, *states, silent=(), gone=()):
    own = next(state for state in states if state.host == host)
    made = LeadingHost(host, SECOND, own, 3, former)
    for other in silent:
        made.silent(other)
    for other in gone:
        made.gone(other)
    for state in states:
        made.heard(state)
    return made


def state(host, **changes):
    made = Following(promised(host, changes.pop("hosts", HOSTS))).state
    return msgspec.structs.replace(made, term=SECOND, **changes)


def test_a_new_leader_takes_a_step_for_made_that_one_of_those_present_has_applied():
    has_mean = {"attempt": 5, "has_mean": True}
    made = leader(1, 0, state(1, **has_mean), state(2, step=1), silent=[0])
    assert (made.direction.step, made.direction.hosts) == (1, (1, 2))
    made = leader(1, 0, state(1, **has_mean), state(2, **has_mean), silent=[0])
    assert (made.direction.step, made.direction.hosts) == (0, (1, 2))


def test_a_leader_knows_for_whom_it_waits():
    """For the hosts of parts that are not there, and then for those that have not the mean."""
    made = leader(0, 0, *(state(host) for host in HOSTS))
    assert made.awaited == {0, 1, 2}
    for host in (0, 1):
        made.heard(state(host, membership=1, parts=(facts(host),)))
    assert made.awaited == {2}


def test_parts_that_are_there_stay_due_where_they_are():
    made = leader(1, 0, state(1, parts=(facts(0),)), state(2, parts=(facts(1),)), gone=[0])
    assert {0, 1} & set(made.direction.due[1]) == {0}
    assert 1 in made.direction.due[2]


def test_a_new_leader_needs_the_membership_that_all_present_have_heard_of():
    five = (0, 1, 2, 3, 4)
    newer = {"membership": 1, "hosts": HOSTS}
    told = leader(1, 0, state(1, **newer), state(2, hosts=five), silent=[0, 3, 4])
    assert told.direction.step == -1
    assert "too few hosts can go on without 0" in told.stands
    told = leader(1, 0, state(1, **newer), state(2, **newer), silent=[0, 3, 4])
    assert (told.direction.step, told.stands) == (0, None)


def test_a_new_leader_that_was_left_behind_leads_nobody():
    told = leader(1, 0, state(1), state(2, membership=1, hosts=(0, 2)), silent=[0])
    assert told.deposed
    assert told.direction.step == -1


def test_of_two_hosts_that_never_get_a_sum_done_the_later_one_is_left_once_all_have_heard_of_it():
    """Before that the one that has not may be the cause, by whomever it is blamed."""

    def there(host, **changes):
        return state(host, membership=1, parts=(facts(host),), arrived=UNRECORDED, **changes)

    made = leader(0, 0, *(state(host) for host in HOSTS))
    for host in HOSTS:
        made.heard(there(host))
    for _ in range(TRIES):
        attempt = made.direction.attempt
        made.heard(there(0, attempt=attempt))
        made.heard(there(2, attempt=attempt, failed=True, blamed=1))
        assert (made.direction.attempt, made.direction.hosts) == (attempt, HOSTS)
        made.heard(there(1, attempt=attempt))
    assert made.direction.hosts == (0, 1)


def test_a_direction_that_was_overtaken_on_its_way_unseats_no_host_that_came_since():
    """A new leader must know those, to find that one that asks again never took part."""
    host = Agent(promised(1), 3, 5.0, 0.0)
    now = {each: tuple(seats(each)) for each in (*HOSTS, 3)}
    host.received(0, directed(membership=2, hosts=(*HOSTS, 3), step=0, seats=now), 0.1)
    host.received(0, directed(seats={each: tuple(seats(each)) for each in HOSTS}), 0.2)
    assert host.seats == now


def asked_in(rank, host):
    return [Seat(rank=rank, task=f"worker:{rank}", address=f"10.0.0.{host}:8")]


def holding(*states):
    """The first leader, of hosts of which two are left where three replicas are needed."""
    two = [state(host, hosts=(0, 1)) for host in (0, 1)]
    made = LeadingHost(0, SECOND, two[0], 3, 0, needed=3)
    for each in states or two:
        made.heard(each)
    return made


def held(host, **changes):
    return state(host, **{"hosts": (0, 1), "membership": 1, "arrived": UNRECORDED, **changes})


def test_a_step_that_begins_with_too_few_replicas_is_dealt_to_nobody_until_there_are_enough():
    made = holding()
    assert (made.direction.held, made.direction.due) == (2, {0: (), 1: ()})
    made.heard(held(0))
    assert made.direction.attempt == -1
    made.heard(held(1, seats=tuple(seats(1) + seats(2))))
    assert made.direction.held == -1
    assert sorted(part for due in made.direction.due.values() for part in due) == [0, 1, 2]


@pytest.mark.parametrize("at", ["another host", "a host that takes part"])
def test_a_step_that_is_held_is_made_void_for_those_who_ask_to_take_part(at):
    made = holding()
    made.heard(held(0))
    if at == "another host":
        made.admit(asked_in(2, 2))
    else:
        made.heard(held(1, joining=True))
    attempt = made.direction.attempt
    assert (attempt >= 0, made.direction.void, made.direction.parts) == (True, True, ())
    made.heard(held(0, attempt=attempt, has_mean=True))
    made.heard(held(1, attempt=attempt, has_mean=True))
    assert made.direction.step == 1
    if at == "another host":
        assert (made.direction.held, made.direction.hosts) == (-1, (0, 1, 2))
    else:  # until its host says that it is there
        assert made.direction.held == 2
        assert made.direction.attempt == -1


def test_nobody_is_let_in_for_whom_a_predecessor_still_counts():
    made = holding()
    made.heard(held(0))
    made.admit(asked_in(1, 1))
    assert (made.direction.held, made.direction.attempt) == (2, -1)


@pytest.mark.parametrize(("dealt", "found"), [(False, 2), (True, -1)])
def test_a_step_whose_parts_were_dealt_is_finished_by_those_who_are_left(dealt, found):
    """Also under a new leader, where one of the hosts has heard that they were."""
    made = holding(held(0, membership=0), held(1, membership=0, dealt=dealt))
    assert made.direction.held == found


def test_a_host_tells_its_replica_that_a_step_is_held_and_the_leader_that_it_was_dealt():
    host = Following(promised(1))
    host.joining(0, joining=True)
    assert host.heard(directed(due={}, held=2)) == [HoldStep(0, 2)]
    assert host.heard(directed(due={}, held=2)) == []
    assert (host.state.dealt, host.state.joining) == (False, True)
    assert host.heard(directed()) == [HoldStep(0, -1), ComputeParts((1,))]
    assert host.state.dealt
    host.heard(directed(attempt=7, void=True))
    host.has_mean(7)
    assert host.heard(directed(step=1, held=2, due={})) == [Apply(0, (), True), HoldStep(1, 2)]
    assert (host.state.dealt, host.state.joining) == (False, False)
    host.joining(0, joining=True)
    assert not host.state.joining


def test_another_replica_goes_on_from_all_that_was_promised():
    mates = (Seat(rank=1, task="worker:1", address="here"), Seat(rank=5, task="worker:5", address="there"))
    known = {host: tuple(seats(host)) for host in HOSTS} | {1: mates}
    host = Agent(Vote.first(1, known), 3, 5.0, 0.0)
    host.gone(2)
    told = directed(membership=1, attempt=7, parts=(facts(0), facts(1)), seats={**known, 1: mates})
    host.received(0, told, 0.1)
    host.drain(0.1)
    host.has_mean(7)
    host.drain(0.2)
    promised = host.vote
    assert (promised.term, promised.membership, promised.gone) == (FIRST, 1, (2,))
    other = Agent(promised.spoken_by(5), 3, 5.0, 0.3)
    ((leader, state),) = other.drain(0.3)[0]
    assert (leader, state.term, state.membership, state.attempt, state.has_mean) == (0, FIRST, 1, 7, True)
    assert state.seats == mates[1:]
    assert other.vote == msgspec.structs.replace(promised, seats=promised.seats | {1: mates[1:]})
    host.received(0, directed(membership=2, hosts=(0,)), 0.4)
    host.drain(0.4)
    again = Agent(host.vote.spoken_by(5), 3, 5.0, 0.5)
    assert again.drain(0.5) == ([], [LeftBehind()])


def test_failures_with_replicas_that_have_ended_leave_nobody_behind():
    """Each attempt fails as another replica of host 2 dies; with one replica the same leaves host 2 behind."""
    for proxies, hosts in ((range(2, 9), HOSTS), ([2] * 7, (0, 1))):
        made = leader(0, 0, state(0, arrived=UNRECORDED), state(1), state(2))
        for host in HOSTS:
            made.heard(state(host, parts=(facts(host),), arrived=UNRECORDED))
        for number, proxy in enumerate(proxies):
            seat = Seat(rank=proxy, task=f"worker:{proxy}", address="")
            for host in HOSTS:
                attempt = {"attempt": made.direction.attempt, "parts": (facts(host),), "arrived": UNRECORDED}
                failed = {"failed": True, "blamed": 2} if host == 1 and number else {}
                more = {"seats": (seat,)} if host == 2 else {}
                made.heard(state(host, **attempt, **failed, **more))
        assert made.direction.hosts == hosts
