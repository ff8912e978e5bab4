"""The ticket gate: the last step exactly, warm-up by rank 0 alone, no replica too far ahead, none shut out for
ever.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.protocol.async_updates import TicketGate


def test_a_ticket_allows_one_push_and_asking_again_changes_nothing():
    gate = TicketGate(accepted=0, max_steps=2)
    assert gate.request(0)
    assert gate.request(0)
    assert gate.holders == {0}
    gate.settle(0, accepted=True)
    assert (gate.accepted, gate.holders) == (1, set())


def test_accepted_pushes_and_tickets_never_exceed_the_last_step():
    gate = TicketGate(accepted=8, max_steps=10)
    assert [gate.request(rank) for rank in range(3)] == [True, True, False]
    gate.settle(0, accepted=True)
    assert not gate.request(2)
    gate.settle(1, accepted=True)
    assert gate.finished
    assert not gate.request(0)


def test_a_ticket_comes_back_when_its_holder_is_lost_or_its_push_is_not_accepted():
    gate = TicketGate(accepted=9, max_steps=10)
    assert gate.request(0)
    assert not gate.request(1)
    gate.leave(0)
    assert gate.request(1)
    gate.settle(1, accepted=False)
    assert not gate.finished
    assert gate.request(2)


def test_warm_up_versions_carry_rank_0_alone():
    gate = TicketGate(accepted=0, max_steps=10, warmup_steps=2)
    assert gate.request(0)
    gate.settle(0, accepted=True)
    assert gate.request(0)
    # Its push of step 2 is under way; another replica's could overtake it.
    assert not gate.request(1)
    assert gate.awaited({0, 1}) == {0}
    gate.settle(0, accepted=True)
    assert gate.request(1)


def test_with_a_staleness_bound_the_fastest_waits_for_the_slowest():
    gate = TicketGate(accepted=0, max_steps=100, staleness_bound=1)
    assert gate.request(1)
    for _ in range(2):
        assert gate.request(0)
        gate.settle(0, accepted=True)
    assert not gate.request(0)
    assert gate.awaited({0, 1}) == {1}
    gate.settle(1, accepted=True)
    assert gate.request(0)


def test_one_that_joins_starts_at_the_slowest_one_s_clock_and_one_that_is_lost_holds_nobody_back():
    gate = TicketGate(accepted=0, max_steps=100, staleness_bound=1, clocks={0: 7, 1: 5})
    gate.join(2)
    assert gate.clocks[2] == 5
    assert not gate.request(0)
    gate.leave(1)
    gate.leave(2)
    assert gate.request(0)


def test_a_replica_that_waits_for_the_last_steps_waits_for_the_holders_of_tickets():
    gate = TicketGate(accepted=0, max_steps=2)
    assert gate.request(2)
    assert gate.request(1)
    assert not gate.request(0)
    assert gate.awaited({0, 1, 2}) == {1, 2}


def test_the_leader_that_gives_an_order_is_not_waited_for_to_push():
    gate = TicketGate(accepted=4, max_steps=10, leader=0)
    assert gate.request(0)
    assert gate.request(2)
    assert gate.hold() == 5, "the version that replica 2 is about to make"
    gate.settle(2, accepted=True)
    assert gate.held_back


def test_a_version_may_come_while_anybody_lives_and_in_the_warm_up_while_rank_0_does():
    gate = TicketGate(accepted=0, max_steps=10, warmup_steps=1)
    assert gate.possible({0})
    assert not gate.possible({1, 2})
    gate.request(0)
    gate.settle(0, accepted=True)
    assert gate.possible({2})
    assert not gate.possible(set())


# Against a twin of ten obvious lines


def refused(gate, rank):
    """Why a rank without a ticket gets none: it waits for these ranks; None if it gets one."""
    slowest = min(gate.clocks.values(), default=0)
    end = gate.max_steps if gate.until is None else min(gate.until, gate.max_steps)
    if gate.staleness_bound is not None and gate.clocks.get(rank, slowest) > slowest + gate.staleness_bound:
        return {other for other, clock in gate.clocks.items() if clock == slowest}
    if rank != 0 and gate.accepted < gate.warmup_steps:
        return {0}
    return set(gate.holders) if gate.accepted + len(gate.holders) >= end else None


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["request", "request", "push", "push", "fail", "leave", "hold", "release"]),
        st.integers(0, 4),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=300)
@given(
    HAPPENINGS,
    st.integers(5, 40),
    st.integers(0, 3),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 4),
)
def test_who_is_refused_and_for_whom_all_wait_is_what_a_look_at_every_clock_says(
    events, max_steps, warmup, bound, leader
):
    gate = TicketGate(0, max_steps, warmup, bound, leader=leader)
    live = set(range(5))
    for kind, rank in events:
        before = gate.fingerprint, [refused(gate, other) for other in range(5)]
        if kind == "request":
            has, why = rank in gate.holders, refused(gate, rank)
            live.add(rank)
            assert gate.request(rank) == (has or why is None)
        elif kind == "leave":
            gate.leave(rank)
            live.discard(rank)
        elif kind == "hold":
            gate.hold()
        elif kind == "release":
            gate.until = None
        elif gate.request(rank):
            live.add(rank)
            gate.settle(rank, kind == "push")
        without = [refused(gate, other) for other in live - gate.holders]
        assert gate.awaited(live) >= set().union(*filter(None, without))
        if None not in without:
            assert gate.awaited(live) == set().union(*without)
        if gate.fingerprint == before[0]:
            others = live - gate.holders - {rank}
            freed = [
                other for other in others if before[1][other] is not None and refused(gate, other) is None
            ]
            assert not freed, "nothing told those who wait"


# Against what must hold of any course of events

EVENTS = st.lists(
    st.tuples(st.sampled_from(["request", "push", "push", "fail", "leave"]), st.integers(0, 4)), max_size=120
)


@settings(deadline=None, max_examples=300)
@given(
    events=EVENTS,
    max_steps=st.integers(1, 30),
    warmup=st.integers(0, 5),
    bound=st.none() | st.integers(1, 4),
    replicas=st.integers(1, 5),
)
@pytest.mark.parametrize("restored", [0, 1])
def test_the_laws_hold_after_every_event_and_all_steps_are_made(
    events, max_steps, warmup, bound, replicas, restored
):
    gate = TicketGate(min(restored, max_steps), max_steps, warmup, bound)
    pushed: list[int] = []

    def push(rank: int, accepted: bool) -> None:
        if rank in gate.holders:
            assert gate.accepted >= warmup or rank == 0
            if bound is not None:
                assert gate.clocks[rank] <= min(gate.clocks.values()) + bound
            gate.settle(rank, accepted)
            pushed.extend([rank] * accepted)

    for kind, rank in events:
        if rank >= replicas:
            continue
        if kind == "request":
            gate.request(rank)
        elif kind == "leave":
            gate.leave(rank)
        else:
            push(rank, kind == "push")
        assert gate.accepted + len(gate.holders) <= max_steps
        assert gate.accepted == min(restored, max_steps) + len(pushed)
        assert gate.finished == (gate.accepted == max_steps)
        if bound is not None and gate.clocks:
            assert max(gate.clocks.values()) - min(gate.clocks.values()) <= bound + 1

    # Whatever happened: if all replicas go on, in any order of speed, the last step is made exactly.
    for _ in range(max_steps + 1):
        for rank in reversed(range(replicas)):
            if gate.request(rank):
                push(rank, accepted=True)
    assert gate.finished
    assert gate.accepted == max_steps
