"""The server's machine by hand: who is answered what, and that whatever is refused leaves every bit alone."""

import math

import msgspec
import numpy as np
import pytest
from roles.by_hand import Hand, only

from dtrain.learning import optimizers
from dtrain.messages import (
    Commit,
    Complete,
    Conclude,
    Farewell,
    Hello,
    Initialised,
    Lineage,
    NotReady,
    Pull,
    Refusal,
    Reply,
    Snapshot,
    SnapshotReply,
    Subscribe,
    Values,
    Verdict,
)
from dtrain.roles.actions import End, Report
from dtrain.roles.parameter_server import LEADER_GRACE_S, LEASE_S
from dtrain.variables import VariableSpec


@pytest.fixture(params=["sync", "async"])
def hand(request):
    hand = Hand(updates=request.param, optimizer=optimizers.SGD(0.5, momentum=0.9))
    hand.initialise()
    return hand


# Initialising


@pytest.mark.parametrize("order", [{}, {"term": 3}, {"generation": 1, "term": 2}])
def test_what_is_not_later_than_what_is_held_is_refused(hand, order):
    hand.initialise(term=3)
    before = hand.image()
    assert hand.initialise(**order) == [Refusal("ps:0 holds term 3 of generation 1 already")]
    assert hand.image() == before


def test_a_new_generation_takes_the_place_of_the_old_one(hand):
    assert hand.initialise(generation=2, version=7) == [Initialised(-1)]
    assert hand.version() == 7


def test_a_new_term_takes_the_place_of_the_old_one_and_says_what_was_given_up():
    hand = Hand(updates="async")
    hand.initialise(term=1)
    hand.push("worker:0", term=1)
    assert hand.initialise(term=2, lineage=Lineage(rolled_back_steps=1)) == [Initialised(1)]
    assert hand.version() == 0
    [reply] = hand.beat("chief:0")
    assert (reply.message.term, reply.message.version, reply.message.lineage.rolled_back_steps) == (2, 0, 1)


def test_what_waits_on_an_earlier_term_is_told_of_the_later_one():
    hand = Hand(updates="sync")
    hand.initialise(term=1)
    assert hand.push("worker:0", term=1, caller="a push") == []
    assert hand.say("worker:1", Pull(1, 3, 5.0, 1), caller="a pull") == []
    answers = hand.say("chief:0", hand.initialisation(term=2), hand.blocks())
    later = Values(1, 0, 10, {}, ticket=False, term=2)
    assert [(a.caller, a.message) for a in answers[1:]] == [("a push", later), ("a pull", later)]
    before = hand.image()
    assert only(hand.push("worker:0", term=1)) == later
    hand.say("ps:1", Complete(1, 1, 1, 0, 0, term=1))
    assert hand.image() == before
    assert hand.pull("worker:0")[0].message.term == 2, "who knows no term yet"


def test_a_push_to_a_server_that_lost_its_memory_waits_for_the_next_term():
    hand = Hand(updates="sync")
    assert hand.push("worker:0", term=1, caller="a push") == []
    hand.now = 5.0
    assert only(hand.tick()) == NotReady("ps:0 waits for chief:0 to initialise the variables")
    assert hand.push("worker:0", term=1, caller="a push") == []
    _, answer = hand.say("chief:0", hand.initialisation(term=2), hand.blocks())
    assert (answer.caller, answer.message) == ("a push", Values(1, 0, 10, {}, ticket=False, term=2))


def test_a_commit_that_cannot_follow_ends_the_server():
    hand = Hand(servers=2, updates="sync")
    hand.initialise()
    [end] = hand.say("ps:0", Commit(1, 3, ((0, 1, 0),)), server=1)
    assert end.failed.startswith("ps:1 cannot follow ps:0: commit of version 3 cannot follow version 0")


def test_a_replica_is_let_go_when_the_last_step_is_saved(hand):
    question = Pull(1, 0, 5.0, concluded=True)
    assert hand.say("worker:0", question) == []
    assert only(hand.say("worker:1", Conclude(1))) == Refusal("only chief:0 may conclude a generation, not worker:1")
    answers = hand.say("chief:0", Conclude(1))
    assert [(a.caller, a.message) for a in answers] == [("chief:0", Conclude(1)), ("worker:0", Conclude(1))]
    assert only(hand.say("worker:0", question)) == Conclude(1)


def test_one_who_is_a_generation_behind_is_told_that_there_is_a_later_one(hand):
    hand.initialise(generation=2)
    before = hand.image()
    for [answer] in (hand.push("worker:0"), hand.pull("worker:0", at_least=9)):
        assert answer.message == Values(2, 0, 10, {}, ticket=False)
        assert answer.blocks == []
    assert hand.image() == before


def test_only_the_leader_initialises(hand):
    before = hand.image()
    [answer] = hand.say("worker:0", hand.initialisation(generation=2), hand.blocks())
    assert answer.message == Refusal("only chief:0 may initialise variables, not worker:0")
    assert hand.image() == before


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"plan": {}}, None),
        ({"plan": {"servers": 1, "variables": [{"name": "x"}]}}, None),
        ({"plan": {"servers": 0, "variables": []}}, []),
        ({"training": {"updates": "sometimes"}}, None),
        ({"optimizer": {"class_name": "Evil", "config": {}}}, None),
        ({"optimizer": {}}, None),
        ({"slots": ("other",)}, None),
        ({"slots": ("m",)}, None),
        ({}, []),
        ({}, [np.zeros(8, np.float32), np.zeros(2, np.int64)]),
        ({}, [np.zeros(7, np.float64), np.zeros(2, np.int64)]),
    ],
)
def test_what_does_not_fit_together_is_refused_and_what_was_held_stays(hand, changes, blocks):
    before, rule = hand.image(), hand.servers[0].training
    message = hand.initialisation(generation=2, **changes)
    answer = only(hand.say("chief:0", message, hand.blocks() if blocks is None else blocks))
    assert isinstance(answer, Refusal), answer
    assert hand.image() == before
    assert hand.servers[0].training == rule
    assert isinstance(only(hand.pull("chief:0")), Values)


def test_slots_of_a_checkpoint_are_restored_and_those_of_a_wrong_size_refused():
    hand = Hand(optimizer=optimizers.SGD(0.5, momentum=0.9))
    message = hand.initialisation(slots=("m",), version=3, seen=[("worker:0", 1, 8)])
    for wrong in (np.ones(1, np.float32), np.ones(7, np.float64), np.ones(8, np.float32)):
        answer = only(hand.say("chief:0", message, [*hand.blocks(), wrong]))
        assert isinstance(answer, Refusal)
        assert hand.servers[0].held is None
    assert only(hand.say("chief:0", message, [*hand.blocks(), np.arange(7, dtype=np.float32)])) == Initialised()
    assert hand.servers[0].held.store.slots["m"][0].tolist() == list(range(7))
    assert only(hand.push("worker:0", sequence=8, base=3)).duplicate


def test_a_server_with_nothing_to_hold_takes_part():
    hand = Hand(servers=3, variables=[VariableSpec("one", (2,))], optimizer=optimizers.Adagrad(0.1), updates="async")
    assert hand.initialise() == [Initialised()] * 3
    message = hand.initialisation(generation=2, slots=("accumulator",))
    assert only(hand.say("chief:0", message, [], server=2)) == Initialised()
    assert only(hand.push("worker:0", server=2, generation=2)).verdict is Verdict.ACCEPTED
    reply = only(hand.say("chief:0", Snapshot(0, 0.0), server=2))
    assert (reply.version, reply.slots) == (1, ("accumulator",))


# Reading


def test_a_pull_waits_for_the_variables_and_says_at_its_deadline_that_it_does():
    hand = Hand(updates="sync")
    assert hand.pull("worker:0", wait_s=5.0) == []
    hand.now = 4.9
    assert hand.tick() == []
    hand.now = 5.0
    assert only(hand.tick()) == NotReady("ps:0 waits for chief:0 to initialise the variables")
    assert hand.pull("worker:0") == []
    message = hand.initialisation()
    answers = hand.say("chief:0", message, hand.blocks())
    assert [(a.caller, type(a.message)) for a in answers] == [("chief:0", Initialised), ("worker:0", Values)]


def test_a_pull_waits_for_its_version_and_gets_what_there_is_at_its_deadline(hand):
    assert hand.pull("worker:0", at_least=1) == []
    hand.now = 5.0
    [answer] = hand.tick()
    assert (answer.message.version, answer.message.max_steps) == (0, 10)
    assert answer.message.plan == hand.plan.to_dict()
    assert [block.tolist() for block in answer.blocks] == [[0] * 7, [0] * 2]


def test_who_is_no_replica_may_read_but_not_push(hand):
    assert isinstance(only(hand.pull("evaluator:0")), Values)
    assert not only(hand.pull("evaluator:0")).ticket
    before = hand.image()
    assert "evaluator:0 is not a replica" in only(hand.push("evaluator:0")).reason
    assert hand.image() == before


def test_a_connection_that_is_gone_is_not_answered():
    hand = Hand()
    assert hand.pull("worker:0") == []
    hand.servers[0].disconnected("worker:0")
    hand.now = 60.0
    assert hand.tick() == []


def test_a_snapshot_waits_for_its_version_then_holds_values_slots_and_what_was_seen():
    hand = Hand(updates="async", optimizer=optimizers.SGD(0.5, momentum=0.9))
    hand.initialise()
    assert hand.say("chief:0", Snapshot(1, 2.0), caller="control") == []
    answers = hand.push("worker:0")
    assert [a.caller for a in answers] == ["worker:0", "control"]
    reply = answers[1]
    rule = optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))
    assert reply.message == SnapshotReply(1, ("m",), [("worker:0", 1, 1)], ((0, 4, 2), (1,)), optimizer=rule)
    assert [block.tolist() for block in reply.blocks] == [[-0.5] * 7, [1, 1], [-0.5] * 7]
    assert hand.say("chief:0", Snapshot(5, 2.0), caller="control") == []
    hand.now = 2.0
    assert only(hand.tick()).version == 1


# Writing


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan_hash": "other"}, "worker:0 pushes by plan other, the run's is"),
        ({"base": 1}, "pushes from version 1, the newest is 0"),
        ({"blocks": []}, "a gradient of worker:0 does not fit: expected"),
        ({"blocks": [np.zeros(6, np.float32), np.zeros(2, np.int64)]}, "does not fit"),
        ({"blocks": [np.zeros(7, np.float64), np.zeros(2, np.int64)]}, "does not fit"),
        ({"blocks": [np.zeros(7, np.float32), np.zeros(2, np.float64)]}, "does not fit"),
        ({"blocks": [np.zeros(7, np.float32)]}, "does not fit"),
    ],
)
def test_a_push_that_breaks_a_rule_is_refused_and_nothing_changes(hand, changes, said):
    before = hand.image()
    answer = only(hand.push("worker:0", **changes))
    assert isinstance(answer, Refusal)
    assert said in answer.reason
    assert hand.image() == before
    assert only(hand.push("worker:0", blocks=_nan(hand), finite=False)).verdict is Verdict.REFUSED, "it may go on"


@pytest.mark.parametrize("task", ["ps:0", "evaluator:0"])
def test_who_is_no_replica_may_not_push(hand, task):
    before = hand.image()
    assert "is not a replica of this run; replicas are chief:0, worker:0, worker:1" in only(hand.push(task)).reason
    assert hand.image() == before


def _nan(hand, value=math.nan):
    blocks = hand.blocks(value=1)
    blocks[0][3] = value
    return blocks


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_refused_by_name_and_stays_so(hand, value):
    before = hand.image()[2]
    for duplicate in (False, True):
        reply = only(hand.push("worker:0", blocks=_nan(hand, value), finite=False))
        assert (reply.verdict, reply.duplicate, reply.version) == (Verdict.REFUSED, duplicate, 0)
        assert "NaN" in reply.reason
        assert hand.image()[2] == before
    assert "worker:0 from version 0" in only(hand.push("worker:0", sequence=2, blocks=_nan(hand), finite=False)).reason


def test_every_server_refuses_a_gradient_whose_nan_lies_elsewhere(hand):
    before = hand.image()[2]
    assert only(hand.push("worker:0", finite=False)).verdict is Verdict.REFUSED
    assert hand.image()[2] == before


def test_large_numbers_whose_sum_overflows_are_finite(hand):
    blocks = hand.blocks()
    blocks[0][...] = 3e38
    answers = hand.push("worker:0", blocks=blocks)
    assert all(a.message.verdict is Verdict.ACCEPTED for a in answers)


def test_messages_that_are_not_for_a_server_are_refused(hand):
    assert only(hand.say("worker:0", Hello("r", "h", "worker:0"))) == Refusal("a parameter server does not take Hello messages")


# Synchronous


def sync(**more):
    hand = Hand(**{"updates": "sync", **more})
    hand.initialise()
    return hand


def test_the_mean_of_exactly_the_contributors_in_rank_order():
    hand = sync(backup_workers=1)
    hand.push("worker:1", blocks=[np.full(7, 1e8, np.float32), np.full(2, 4)])
    assert hand.version() == 0
    answers = hand.push("worker:0", blocks=[np.full(7, 3.0, np.float32), np.full(2, 7)])
    assert [a.caller for a in answers] == ["worker:1", "worker:0"]
    for answer in answers:
        assert answer.message == Reply(Verdict.ACCEPTED, 1, accepted=1)
        mean = (np.float32(3.0) + np.float32(1e8)) / np.float32(2)
        assert answer.blocks[0].tolist() == [np.float32(-0.5) * mean] * 7
        assert answer.blocks[1].tolist() == [5, 5]


def test_the_order_of_arrival_does_not_matter():
    images = set()
    for order in (["chief:0", "worker:0", "worker:1"], ["worker:1", "chief:0", "worker:0"]):
        hand = sync()
        for task in order:
            hand.push(task, value={"chief:0": 1e8, "worker:0": 3, "worker:1": -1e8}[task])
        images.add(repr(hand.image()[2]))
    assert len(images) == 1


def test_whoever_comes_later_is_stale_and_told_at_once_with_the_newest_values():
    hand = sync(backup_workers=1)
    hand.push("chief:0")
    hand.push("worker:0")
    before = hand.image()
    [answer] = hand.push("worker:1", value=50)
    assert answer.message == Reply(Verdict.STALE, 1, stale=1)
    assert answer.blocks[0].tolist() == [-0.5] * 7
    assert hand.image()[2] == before[2]
    assert only(hand.push("worker:1", value=50)) == Reply(Verdict.STALE, 1, stale=1, duplicate=True)


def test_a_repetition_while_the_version_is_made_waits_for_the_same_answer():
    hand = sync()
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    assert hand.push("worker:0", caller="new", value=7) == []
    hand.push("worker:1")
    answers = {a.caller: a for a in hand.push("chief:0")}
    assert set(answers) == {"new", "worker:1", "chief:0"}
    assert answers["new"].message == Reply(Verdict.ACCEPTED, 1, accepted=1, duplicate=True)
    assert answers["new"].blocks[0].tolist() == [-0.5] * 7, "the first arrival counts, not its repetition"


def test_a_version_that_is_made_while_a_replica_reconnects_keeps_its_verdict_for_it():
    hand = sync()
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    hand.push("worker:1")
    hand.push("chief:0")
    assert only(hand.push("worker:0", caller="new")) == Reply(Verdict.ACCEPTED, 1, accepted=1, duplicate=True)


def test_a_late_repetition_on_the_old_connection_does_not_take_the_answer_from_the_new_one():
    hand = sync()
    hand.push("worker:0", caller="new")
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    hand.push("worker:1")
    assert "new" in [a.caller for a in hand.push("chief:0")]


def test_with_fewer_replicas_than_contributions_each_gives_several():
    hand = sync(workers=1, replicas_to_aggregate=3)
    assert only(hand.push("worker:0")) == Reply(Verdict.PENDING, 0)
    [answer] = hand.push("chief:0", value=4)
    assert answer.message == Reply(Verdict.PENDING, 0)
    assert answer.blocks == []
    answers = hand.push("worker:0", sequence=2, ordinal=1, value=7)
    assert only(answers) == Reply(Verdict.ACCEPTED, 1, accepted=2)
    assert answers[0].blocks[0].tolist() == [-0.5 * (1 + 4 + 7) / 3] * 7
    assert only(hand.push("chief:0", sequence=2, ordinal=1)) == Reply(Verdict.STALE, 1, stale=1)


def test_a_repeated_pending_contribution_leaves_the_replica_its_values():
    hand = sync(workers=1, replicas_to_aggregate=3)
    hand.push("chief:0")
    hand.push("worker:0")
    hand.push("worker:0", sequence=2, ordinal=1)
    [answer] = hand.push("chief:0")
    assert (answer.message.verdict, answer.message.duplicate) == (Verdict.PENDING, True)
    assert answer.blocks == []


def test_an_older_incarnation_and_an_older_push_are_refused():
    hand = sync()
    hand.push("worker:0", sequence=3, incarnation=2)
    before = hand.image()
    assert "incarnation 1" in only(hand.push("worker:0", sequence=4)).reason
    assert "push 2 is older" in only(hand.push("worker:0", sequence=2, incarnation=2)).reason
    assert hand.image() == before


def test_a_successor_s_contribution_does_not_count_beside_its_dead_predecessor_s():
    hand = sync(backup_workers=1)
    hand.push("worker:0", value=1)
    hand.push("worker:0", value=1, incarnation=2)
    assert hand.version() == 0
    hand.push("chief:0", value=3)
    assert hand.image()[2][0] == np.full(7, -1.0, np.float32).tobytes()


def test_after_the_last_version_a_push_is_finished_and_nobody_is_missed():
    hand = sync(max_steps=1, too_few="fail")
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.beat(task)
        hand.push(task)
    for task in ("worker:0", "worker:1"):
        assert only(hand.beat(task, 1, leaving=True)).failed is None
    before = hand.image()[2]
    assert only(hand.push("chief:0", sequence=2, base=1)) == Reply(Verdict.FINISHED, 1)
    assert hand.image()[2] == before
    assert only(hand.say("chief:0", Snapshot(1, 0.0))).version == 1


def test_means_of_whole_numbers_and_truth_values_are_of_their_own_kind():
    kinds = [("int8", 100, 100), ("uint8", 200, 200), ("int64", -3, -3), ("bool", True, True), ("float64", 0.1, 0.1)]
    variables = [VariableSpec(f"v{i}", (1,), dtype, trainable=False) for i, (dtype, _, _) in enumerate(kinds)]
    hand = sync(variables=variables)
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.push(task, blocks=[np.array([value], dtype) for dtype, value, _ in kinds])
    for value, (dtype, _, expected) in zip(hand.servers[0].held.store.values, kinds, strict=True):
        assert value.dtype == dtype
        assert value[0] == pytest.approx(expected)


# Two servers, one decision


def test_a_contribution_counts_when_both_servers_hold_it_and_both_commit_the_same():
    hand = sync(servers=2, backup_workers=2)
    assert hand.say("ps:1", Subscribe(1, 0), caller="commits") == []
    assert hand.push("worker:1") == []
    [report] = hand.push("worker:0", server=1)
    assert report == Report(Complete(1, 1, 1, 0, 0))
    assert hand.say("ps:1", report.message) == []
    [late] = hand.push("worker:1", server=1)
    actions = hand.say("ps:1", late.message)
    commit = Commit(1, 0, ((2, 1, 0),))
    assert [(a.caller, type(a.message)) for a in actions] == [("commits", Commit), ("worker:1", Reply)]
    assert actions[0].message == commit
    replies = hand.say("ps:0", commit, server=1)
    assert [(a.caller, a.message.verdict) for a in replies] == [("worker:0", Verdict.STALE), ("worker:1", Verdict.ACCEPTED)]
    before = hand.image(1)
    assert hand.say("ps:0", commit, server=1) == []
    assert hand.image(1) == before


def test_after_a_reconnect_a_server_tells_what_it_holds_and_hears_what_it_missed():
    hand = sync(servers=2, backup_workers=2)
    assert hand.servers[1].position() == (Subscribe(1, 0), [])
    [report] = hand.push("worker:0", server=1)
    assert hand.servers[1].position() == (Subscribe(1, 0), [report.message])
    hand.push("worker:0")
    hand.say("ps:1", report.message)
    assert hand.version() == 1
    [again] = hand.say("ps:1", Subscribe(1, 0), caller="commits")
    assert again.message == Commit(1, 0, ((1, 1, 0),))
    hand.say("ps:0", again.message, server=1)
    assert hand.servers[1].position() == (Subscribe(1, 1), [])
    assert hand.say("ps:1", Subscribe(1, 1), caller="commits") == []
    hand.servers[0].disconnected("commits")


def test_a_server_that_asked_before_it_was_initialised_hears_what_it_missed_since():
    hand = sync(servers=2, backup_workers=2)
    hand.push("worker:0")
    [report] = hand.push("worker:0", server=1)
    hand.say("ps:1", report.message)
    assert [action.message for action in hand.say("ps:1", Subscribe(0, 0))] == [Commit(1, 0, ((1, 1, 0),))]


def test_what_belongs_to_another_generation_changes_nothing():
    hand = sync(servers=2)
    before = hand.image()
    assert hand.say("ps:1", Complete(2, 0, 1, 0, 0)) == []
    assert hand.say("ps:1", Commit(2, 0, ((0, 1, 0),)), server=1) == []
    assert hand.say("ps:1", Subscribe(2, 0)) == []
    assert hand.image() == before
    assert Hand(servers=2).servers[1].position() == (Subscribe(0, 0), [])


# Who is alive


def lost(hand, *tasks):
    """These tasks are heard of no more, all others are."""
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.beat(task)
    hand.now += LEASE_S + 0.1
    for task in {"chief:0", "worker:0", "worker:1"} - set(tasks):
        hand.beat(task, 1)
    return hand.tick()


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
    failed = only(hand.tick()).reason
    assert failed.startswith("too few replicas: 3 contributions are needed for version 1 and at most")
    assert only(hand.push("chief:0")) == Refusal(failed)
    assert only(hand.beat("chief:0", 1)).failed == failed
    assert only(hand.say("chief:0", Snapshot(0, 0.0))) == Refusal(failed)


def test_shrink_makes_the_version_of_those_who_live():
    hand = sync(too_few="shrink")
    hand.push("chief:0", value=2)
    hand.push("worker:0", value=4)
    assert hand.version() == 0
    answers = lost(hand, "worker:1")
    assert {a.caller for a in answers} == {"chief:0", "worker:0"}
    assert answers[0].blocks[0].tolist() == [-1.5] * 7


def test_fail_fails_at_once_and_whoever_leaves_is_missing_too():
    hand = sync(too_few="fail")
    hand.beat("worker:1")
    assert hand.beat("worker:1", 1, leaving=True)[0].message.failed is None
    assert only(hand.beat("chief:0")).failed.startswith("too few replicas")


def test_heartbeats_tell_how_the_run_stands_and_the_leader_hears_everybody_s_status():
    hand = sync(backup_workers=1)
    hand.beat("worker:0", status={"task": "worker:0", "step": 3})
    reply = only(hand.beat("chief:0"))
    assert (reply.incarnation, reply.generation, reply.version, reply.ended) == (1, 1, 0, False)
    assert reply.statuses == ({"task": "worker:0", "step": 3},)
    hand.push("worker:0")
    reply = only(hand.beat("worker:1"))
    assert reply.statuses == ()
    assert reply.waiting_for == "chief:0, worker:1"


def test_a_process_whose_place_was_taken_is_told_so(hand):
    hand.beat("worker:0")
    assert only(hand.beat("worker:0")).incarnation == 2
    assert only(hand.beat("worker:0", 1, process=1)) == Refusal("another process has taken the place of worker:0")


# The end


def test_after_the_farewell_it_ends_when_the_last_connection_is_closed(hand):
    assert only(hand.say("worker:0", Farewell())) == Refusal("only chief:0 may say farewell, not worker:0")
    assert hand.tick(connections=0) == []
    assert only(hand.say("chief:0", Farewell())) == Farewell()
    assert only(hand.beat("worker:0")).ended
    assert hand.tick(connections=1) == []
    assert hand.tick(connections=0) == [End()]


def test_after_an_early_farewell_everybody_is_told_that_training_has_ended(hand):
    hand.say("chief:0", Farewell())
    told = "chief:0 has ended training at step 0 of 10"
    assert only(hand.push("worker:0")) == Refusal(told)
    assert only(hand.pull("worker:0")) == Refusal(told)
    assert only(hand.beat("worker:0")).failed == told


def test_long_after_the_leader_was_lost_it_ends_by_name(hand):
    hand.beat("chief:0")
    hand.now = LEASE_S + 0.1
    assert hand.tick() == []
    hand.now += LEADER_GRACE_S - 0.5
    assert hand.tick() == []
    hand.now += 1.0
    assert hand.tick() == [End("chief:0 has not been heard of for 65 s")]


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
    hand.now = LEADER_GRACE_S
    assert hand.tick() == [End("chief:0 has not been heard of for 65 s")]


def test_after_the_farewell_nobody_waits_for_the_leader(hand):
    hand.beat("chief:0")
    hand.say("chief:0", Farewell())
    hand.beat("chief:0", 1, leaving=True)
    for hand.now in (1.0, 1.0 + LEADER_GRACE_S, 1000.0):
        assert hand.tick(connections=1) == []


# Asynchronous


def asynchronous(**more):
    hand = Hand(**{"updates": "async", **more})
    hand.initialise()
    return hand


def test_every_push_is_applied_on_arrival_and_its_staleness_told():
    hand = asynchronous(workers=1)
    assert only(hand.push("worker:0")) == Reply(Verdict.ACCEPTED, 1, accepted=1)
    [answer] = hand.push("chief:0", value=3)
    assert answer.message == Reply(Verdict.ACCEPTED, 2, staleness=1, accepted=1)
    assert [block.tolist() for block in answer.blocks] == [[-2.0] * 7, [3, 3]]


def test_a_duplicate_gets_the_first_verdict_and_staleness_and_the_newest_values():
    hand = asynchronous(workers=1)
    hand.push("chief:0")
    first = only(hand.push("worker:0"))
    hand.push("chief:0", sequence=2, base=1)
    before = hand.image()
    [again] = hand.push("worker:0", value=99)
    assert again.message == msgspec.structs.replace(first, version=3, duplicate=True)
    assert again.blocks[0].tolist() == [-1.5] * 7
    assert hand.image() == before


def test_what_is_too_stale_is_dropped_and_scaled_is_scaled():
    hand = asynchronous(stale_gradients="drop", max_staleness=0)
    hand.push("chief:0")
    before = hand.image()[2]
    assert only(hand.push("worker:0")) == Reply(Verdict.STALE, 1, staleness=1, stale=1)
    assert hand.image()[2] == before
    hand = asynchronous(stale_gradients="scale")
    for sequence in (1, 2):
        hand.push("chief:0", sequence=sequence, base=sequence - 1, value=0)
    [answer] = hand.push("worker:0", value=4)
    assert answer.message.staleness == 2
    assert answer.blocks[0].tolist() == [-1.0] * 7


def test_the_last_step_is_exact_and_whoever_has_no_ticket_waits_for_it():
    hand = asynchronous(max_steps=2)
    for task in ("chief:0", "worker:0"):
        assert only(hand.pull(task)).ticket
    assert hand.pull("worker:1") == []
    assert not only(hand.push("chief:0")).ticket
    answers = hand.push("worker:0", base=0)
    assert [(a.caller, type(a.message), a.message.ticket) for a in answers] == [
        ("worker:0", Reply, False),
        ("worker:1", Values, False),
    ]
    before = hand.image()[2]
    assert only(hand.push("worker:1", base=2)).verdict is Verdict.FINISHED
    assert hand.image()[2] == before
    assert hand.version() == 2


def test_a_lost_holder_s_ticket_goes_to_whoever_waits():
    hand = asynchronous(max_steps=1)
    assert only(hand.pull("worker:0")).ticket
    assert hand.pull("worker:1", wait_s=60.0) == []
    [answer] = lost(hand, "worker:0")
    assert (answer.caller, answer.message.ticket) == ("worker:1", True)


def test_a_lost_replica_gets_no_ticket_before_it_is_heard_of():
    hand = asynchronous()
    lost(hand, "worker:0")
    assert hand.pull("worker:0", wait_s=60.0) == []
    [beat, values] = hand.beat("worker:0", 1)
    assert (beat.message.incarnation, values.message.ticket) == (2, True)


def test_a_late_push_of_a_lost_replica_holds_nobody_back():
    hand = asynchronous(max_steps=100, staleness_bound=1)
    for sequence in range(1, 5):
        for task in ("chief:0", "worker:0", "worker:1"):
            hand.pull(task)
            hand.push(task, sequence=sequence, base=hand.version())
    lost(hand, "worker:0")
    assert only(hand.push("worker:0", sequence=9, base=0)).verdict is Verdict.ACCEPTED
    assert only(hand.push("chief:0", sequence=9, base=0)).ticket


def test_warm_up_is_the_chief_s_alone():
    hand = asynchronous(warmup_steps=1)
    assert only(hand.pull("chief:0")).ticket
    assert hand.pull("worker:0") == []
    assert [(a.caller, a.message.ticket) for a in hand.push("chief:0")] == [("chief:0", True), ("worker:0", True)]


def test_a_nan_gives_its_ticket_to_whoever_waits():
    hand = asynchronous(max_steps=1)
    hand.pull("worker:0")
    assert hand.pull("worker:1") == [], "the only step is worker:0's to make"
    refused, given = hand.push("worker:0", finite=False)
    assert (refused.caller, refused.message.verdict, refused.message.ticket) == ("worker:0", Verdict.REFUSED, False)
    assert (given.caller, given.message.ticket) == ("worker:1", True)


def test_a_server_without_the_gate_lets_everybody_push():
    hand = asynchronous(servers=2, max_steps=1)
    assert only(hand.pull("worker:0", server=1)).ticket
    assert only(hand.push("worker:0", server=1)).ticket


def test_the_one_decision_of_synchronous_training_is_none_of_an_asynchronous_server_s_business():
    hand = asynchronous(servers=2)
    assert hand.say("ps:1", Subscribe(1, 0)) == hand.say("ps:1", Complete(1, 0, 1, 0, 0)) == []
    assert hand.say("ps:0", Commit(1, 0, ()), server=1) == []
    assert hand.servers[1].position() == (Subscribe(0, 0), [])


def test_a_stale_gradient_is_compensated_for_the_way_the_weights_have_gone():
    hand = Hand(updates="async", stale_gradients="compensate", compensation=0.5, optimizer=optimizers.SGD(1.0))
    hand.initialise()
    for task in ("chief:0", "worker:0"):
        hand.pull(task)
    hand.push("chief:0", value=2)  # the weights go from 0 to -2
    [answer] = hand.push("worker:0", value=1)  # 1 + 0.5 * 1 * 1 * (-2 - 0) = 0
    assert (answer.message.verdict, answer.message.staleness) == (Verdict.ACCEPTED, 1)
    assert answer.blocks[0].tolist() == [-2.0] * 7
    [answer] = hand.push("worker:0", sequence=2, base=2, value=1)  # fresh: as it is
    assert answer.blocks[0].tolist() == [-3.0] * 7


def test_heartbeats_tell_for_whom_everybody_waits():
    hand = Hand(updates="async", warmup_steps=2, max_steps=2)
    assert only(hand.beat("worker:1")).waiting_for == "chief:0", "to initialise"
    hand.initialise()
    assert only(hand.beat("worker:1", 1)).waiting_for == "chief:0", "alone in the warm-up"
    for sequence in (1, 2):
        hand.push("chief:0", sequence=sequence)
    assert only(hand.beat("worker:1", 1)).waiting_for == "chief:0", "to save the last step"
    hand.say("chief:0", Conclude(1))
    assert only(hand.beat("worker:1", 1)).waiting_for is None


def test_asynchronous_training_without_anybody_who_could_train_fails_by_name():
    hand = Hand(updates="async", chief_trains=False, too_few_timeout_s=10.0)
    hand.initialise()
    hand.beat("chief:0")
    for hand.now in (61.0, 70.0):  # nobody has come within the time to join
        hand.beat("chief:0", 1)
        hand.tick()
    assert only(hand.beat("chief:0", 1)).failed is None
    hand.now = 72.0
    hand.tick()
    assert only(hand.beat("chief:0", 1)).failed == "too few replicas: nobody is alive who could make version 1, for 11.0 s"


def test_a_contribution_that_another_server_lacks_is_waited_for_there():
    hand = Hand(servers=2, updates="sync", backup_workers=1)
    hand.initialise()
    hand.push("worker:0")
    hand.push("worker:1")
    hand.say("ps:1", Complete(1, 1, 1, 0, 0))
    assert only(hand.beat("worker:1")).waiting_for == "ps:1, chief:0"
