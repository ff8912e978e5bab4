"""Which members live, when they are too few, and when a server may go, without processes."""

import pytest
from roles.by_hand import TASKS, Hand, lost, only, sync

from dtrain.config import WaitSection
from dtrain.control.interface import End
from dtrain.messages import Farewell, Refusal, RefusalKind, Snapshot, Verdict
from dtrain.messages.membership import TaskStatus
from dtrain.protocol.membership import LEASE_S, MemberState

WAIT = WaitSection()


def test_wait_goes_on_when_the_lost_one_is_back():
    hand = sync(too_few="wait")
    lost(hand, "worker:1")
    hand.push("chief:0")
    assert hand.push("worker:0") == []
    hand.beat("worker:1")
    assert len(hand.push("worker:1", incarnation=2)) == 3


def test_wait_has_an_end_that_says_how_many_are_missing():
    hand = sync(too_few="wait", too_few_timeout_s=20.0)
    lost(hand, "worker:1")
    hand.pull("worker:0", at_least=1, wait_s=100.0)
    hand.now += 19.9
    assert hand.tick()[1:] == []
    hand.now += 0.1
    failed = only(hand.tick())
    assert failed.kind is RefusalKind.TOO_FEW_REPLICAS
    assert failed.reason.startswith("too few replicas: 3 contributions are needed for version 1 and at most")
    assert only(hand.push("chief:0")) == failed
    assert only(hand.beat("chief:0", 1)).failed == failed
    assert only(hand.say("chief:0", Snapshot(at_least=0, wait_s=0.0))) == failed


def test_those_who_wait_are_told_who_has_gone_and_how():
    hand = sync(too_few_timeout_s=20.0, backup_workers=0)
    for task in TASKS:
        hand.beat(task, status=TaskStatus(task, 1, "here", step=9))
    assert only(hand.beat("chief:0", 1)).waiting_for == "chief:0, worker:0, worker:1"
    hand.beat("worker:1", 1, leaving=True)
    assert only(hand.beat("chief:0", 1)).waiting_for == "worker:1", "at once, whatever the others have done"
    hand.push("chief:0")
    hand.now += LEASE_S + 0.1
    hand.beat("chief:0", 1)
    hand.tick()
    assert only(hand.beat("chief:0", 1)).waiting_for == "worker:0, worker:1"
    hand.now += 20.0
    hand.beat("chief:0", 1)
    hand.tick()
    failed = only(hand.beat("chief:0", 1)).failed.reason
    assert failed.startswith("too few replicas: 3 contributions are needed for version 1 and at most")
    assert failed.endswith(
        "(training.too_few: wait): worker:0 has not been heard of for more than 5 s, worker:1 left at step 9"
    )


def test_fail_fails_at_once_and_whoever_leaves_is_missing_too():
    hand = sync(too_few="fail")
    hand.beat("worker:1")
    assert hand.beat("worker:1", 1, leaving=True)[0].message.failed is None
    assert only(hand.beat("chief:0")).failed.kind is RefusalKind.TOO_FEW_REPLICAS


def test_heartbeats_tell_how_the_run_stands_and_the_leader_hears_everybody_s_status():
    hand = sync(backup_workers=1)
    hand.beat("worker:0", status=TaskStatus("worker:0", 1, "here", step=3))
    reply = only(hand.beat("chief:0"))
    assert (reply.incarnation, reply.generation, reply.version, reply.ended) == (1, 1, 0, False)
    assert reply.statuses == (TaskStatus("worker:0", 1, "here", step=3),)
    hand.push("worker:0")
    reply = only(hand.beat("worker:1"))
    assert reply.statuses == ()
    assert reply.waiting_for == "chief:0, worker:1"


def test_the_leader_hears_how_long_ago_a_task_spoke_and_that_it_is_lost():
    """By the clock of the control host: those of other machines have nothing in common with it."""
    hand = sync(backup_workers=1)
    hand.beat("worker:0", status=TaskStatus("worker:0", 1, "there", monotonic_s=300_000.0, step=3))
    hand.beat("chief:0")
    hand.now += LEASE_S - 1
    [said] = only(hand.beat("chief:0", 1)).statuses
    assert (said.silent_s, said.lost) == (LEASE_S - 1, False)
    hand.now += 2
    hand.tick()
    [said] = only(hand.beat("chief:0", 1)).statuses
    assert (said.silent_s, said.lost) == (LEASE_S + 1, True)
    hand.beat("worker:0", 1, status=said)
    [said] = only(hand.beat("chief:0", 1)).statuses
    assert (said.silent_s, said.lost) == (0.0, False)


def test_after_ps_0_was_started_again_whoever_was_dead_before_is_waited_for_no_longer_than_a_lease():
    before = sync(too_few="shrink")
    lost(before, "worker:1")
    known = only(before.beat("chief:0", 1)).heard_of
    assert known == TASKS
    assert only(before.beat("worker:0", 1)).heard_of == ()
    after = Hand(updates="sync", too_few="shrink")
    after.initialise(heard_of=known)
    after.now = LEASE_S - 0.1
    for task in ("chief:0", "worker:0"):
        after.beat(task)
        after.push(task)
    assert only(after.beat("chief:0", 1)).waiting_for == "worker:1"
    after.now = LEASE_S + 0.1
    [answer] = after.tick()
    assert (answer.caller, answer.message.verdict) == ("chief:0", Verdict.PENDING)


def test_a_process_whose_place_was_taken_is_told_so(hand):
    hand.beat("worker:0")
    assert only(hand.beat("worker:0")).incarnation == 2
    assert only(hand.beat("worker:0", 1, process=1)) == Refusal(
        reason="another process has taken the place of worker:0"
    )


@pytest.mark.parametrize(("workers", "more"), [(8, ""), (10, ", 2 more")])
def test_of_those_who_are_waited_for_eight_are_named_and_the_others_counted(workers, more):
    hand = sync(workers=workers)
    hand.push("chief:0", part=0)
    named = ", ".join(f"worker:{index}" for index in range(8))
    assert only(hand.beat("chief:0")).waiting_for == named + more


# The end


def trained(**more):
    """Servers that hold the last version."""
    hand = Hand(**more)
    hand.initialise(version=hand.max_steps)
    return hand


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_after_the_farewell_it_ends_when_the_last_connection_is_closed(updates):
    hand = trained(updates=updates)
    for task in TASKS:
        hand.beat(task)
    assert only(hand.say("worker:0", Farewell())) == Refusal(
        reason="only chief:0 may say farewell, not worker:0"
    )
    assert hand.tick(connections=0) == []
    assert only(hand.say("chief:0", Farewell())) == Farewell()
    assert only(hand.beat("worker:0")).ended
    for task in TASKS:
        hand.beat(task, 1, leaving=True)
    assert hand.tick(connections=1) == []
    assert hand.tick(connections=0) == [End()]


def test_after_the_farewell_the_first_server_waits_a_lease_for_one_that_was_killed_and_may_come_again():
    hand = trained()
    for task in TASKS:
        hand.beat(task)
    for task in ("chief:0", "worker:0"):
        hand.beat(task, 1, leaving=True)
    hand.say("chief:0", Farewell())
    hand.now = LEASE_S - 0.1
    assert hand.tick(connections=0) == []
    assert only(hand.beat("worker:1")).ended
    hand.now = 2 * LEASE_S - 0.2
    assert hand.tick(connections=0) == []
    hand.now = 2 * LEASE_S
    assert hand.tick(connections=0) == [End()]


def test_after_the_farewell_the_first_server_waits_for_who_has_not_come_yet():
    hand = trained(evaluators=1)
    for task in ("chief:0", "worker:1"):
        hand.beat(task)
        hand.beat(task, 1, leaving=True)
    hand.say("chief:0", Farewell())
    assert hand.servers[0].control.roster.latecomers(hand.servers[0].held) == ["worker:0", "evaluator:0"]
    assert hand.tick(connections=0) == []
    assert only(hand.beat("worker:0")).ended
    hand.beat("worker:0", 1, leaving=True)
    assert hand.tick(connections=0) == []
    assert only(hand.beat("evaluator:0")).ended
    hand.beat("evaluator:0", 1, leaving=True)
    assert hand.tick(connections=1) == []
    assert hand.tick(connections=0) == [End()]


def test_who_does_not_come_at_all_is_awaited_for_as_long_as_a_start_may_take():
    hand = trained()
    hand.say("chief:0", Farewell())
    hand.now = WAIT.start_s - 0.1
    assert hand.tick(connections=0) == []
    hand.now = WAIT.start_s + 0.1
    assert hand.tick(connections=0) == [End()]


def test_nobody_has_to_come_to_a_training_that_has_ended_before_its_last_step(hand):
    assert only(hand.say("chief:0", Farewell())) == Farewell()
    assert hand.tick(connections=0) == [End()]


def test_after_an_early_farewell_everybody_is_told_that_training_has_ended(hand):
    hand.say("chief:0", Farewell())
    told = Refusal(reason="chief:0 has ended training at step 0 of 10", kind=RefusalKind.ENDED)
    assert only(hand.push("worker:0")) == told
    assert only(hand.pull("worker:0")) == told
    assert only(hand.beat("worker:0")).failed == told


def test_long_after_the_leader_was_lost_it_ends_by_name(hand):
    hand.beat("chief:0")
    hand.now = LEASE_S + 0.1
    assert hand.tick() == []
    hand.now += WAIT.leader_s - 0.5
    assert hand.tick() == []
    hand.now += 1.0
    assert hand.tick() == [End("chief:0 has not been heard of for 65 s")]


@pytest.mark.parametrize("server", [0, 1])
def test_a_leader_that_never_comes_is_waited_for_as_the_spec_says(server):
    hand = Hand(servers=2, chief_trains=False, wait=WaitSection(start_s=20.0, leader_s=7.0))
    for hand.now in (1.0, 20.0):
        assert hand.tick(server, connections=2) == []
    hand.now = 20.2
    hand.tick(server, connections=2)
    assert hand.tick(server, connections=2) == [End("chief:0 did not come within 20 s (wait.start_s)")]


def test_a_launcher_that_may_start_the_leader_elsewhere_is_given_the_time_for_it():
    hand = Hand(wait=WaitSection(start_s=20.0, leader_s=7.0))
    hand.servers[0].control.roster.watched = True
    for hand.now in (20.1, 27.0):
        assert hand.tick() == []
    hand.now = 27.2
    assert hand.tick() == [End("chief:0 did not come within 27 s (wait.start_s)")]


def test_how_long_a_lost_leader_and_a_latecomer_are_waited_for_is_the_specs():
    hand = Hand(wait=WaitSection(start_s=4.0, leader_s=7.0))
    hand.initialise()
    hand.beat("chief:0")
    hand.now = LEASE_S + 0.1
    assert hand.tick() == []
    assert hand.servers[0].control.roster.membership.tasks(MemberState.LOST) == (
        "chief:0",
        "worker:0",
        "worker:1",
    )
    hand.now += 7.1
    assert hand.tick() == [End("chief:0 has not been heard of for 12 s")]


def test_a_leader_that_comes_back_in_time_keeps_it(hand):
    hand.beat("chief:0")
    hand.now = LEASE_S + 0.1
    hand.tick()
    hand.now = 60.0
    hand.beat("chief:0", 1)
    hand.now = 64.0
    assert hand.tick() == []


def test_a_leader_that_left_without_a_farewell_is_gone_too(hand):
    hand.beat("chief:0")
    hand.beat("chief:0", 1, leaving=True)
    assert hand.tick() == []
    hand.now = WAIT.leader_s
    assert hand.tick() == [End("chief:0 has not been heard of for 65 s")]


def test_after_the_farewell_nobody_waits_for_the_leader(hand):
    hand.beat("chief:0")
    hand.say("chief:0", Farewell())
    hand.beat("chief:0", 1, leaving=True)
    for hand.now in (1.0, 1.0 + WAIT.leader_s, 1000.0):
        assert hand.tick(connections=1) == []


def test_after_the_farewell_the_first_server_does_not_wait_for_the_servers_that_follow_it():
    hand = Hand(servers=2, updates="async", max_steps=1)
    hand.initialise()
    for task in (*TASKS, "ps:1"):
        hand.beat(task)
    hand.push("worker:0")
    for task in TASKS:
        hand.beat(task, 1, leaving=True)
    hand.say("chief:0", Farewell())
    assert hand.tick(connections=0) == [End()]
