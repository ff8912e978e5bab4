"""The server's machine by hand: terms, refusals, and that whatever is refused leaves every bit alone."""

import math

import numpy as np
import pytest
from roles.by_hand import Hand, only

from dtrain.learning import optimizers
from dtrain.messages import (
    Commit,
    Complete,
    Conclude,
    Hello,
    Initialised,
    Lineage,
    NotReady,
    Pull,
    Refusal,
    Snapshot,
    Values,
    Verdict,
)
from dtrain.variables import VariableSpec


@pytest.mark.parametrize("order", [{}, {"term": 3}, {"generation": 1, "term": 2}])
def test_what_is_not_later_than_what_is_held_is_refused(hand, order):
    hand.initialise(term=3)
    before = hand.image()
    assert hand.initialise(**order) == [Refusal(reason="ps:0 holds term 3 of generation 1 already")]
    assert hand.image() == before


def test_a_new_generation_takes_the_place_of_the_old_one(hand):
    assert hand.initialise(generation=2, version=7) == [Initialised(given_up=-1)]
    assert hand.version() == 7


def test_a_new_term_takes_the_place_of_the_old_one_and_says_what_was_given_up():
    hand = Hand(updates="async")
    hand.initialise(term=1)
    hand.push("worker:0", term=1)
    assert hand.initialise(term=2, lineage=Lineage(rolled_back_steps=1)) == [Initialised(given_up=1)]
    assert hand.version() == 0
    [reply] = hand.beat("chief:0")
    assert (reply.message.term, reply.message.version, reply.message.lineage.rolled_back_steps) == (2, 0, 1)


def test_what_waits_on_an_earlier_term_is_told_of_the_later_one():
    hand = Hand(updates="sync")
    hand.initialise(term=1)
    assert hand.push("worker:0", term=1, caller="a push") == []
    assert hand.say("worker:1", Pull(generation=1, at_least=3, wait_s=5.0, term=1), caller="a pull") == []
    answers = hand.say("chief:0", hand.initialisation(term=2), hand.blocks())
    later = Values(generation=1, version=0, max_steps=10, ticket=False, term=2)
    assert [(a.caller, a.message) for a in answers[1:]] == [("a push", later), ("a pull", later)]
    before = hand.image()
    assert only(hand.push("worker:0", term=1)) == later
    hand.say("ps:1", Complete(generation=1, rank=1, incarnation=1, version=0, ordinal=0, term=1))
    assert hand.image() == before
    assert hand.pull("worker:0")[0].message.term == 2, "who knows no term yet"


def test_a_push_to_a_server_that_lost_its_memory_waits_for_the_next_term():
    hand = Hand(updates="sync")
    assert hand.push("worker:0", term=1, caller="a push") == []
    hand.now = 5.0
    assert only(hand.tick()) == NotReady(reason="ps:0 waits for chief:0 to initialise the variables")
    assert hand.push("worker:0", term=1, caller="a push") == []
    _, answer = hand.say("chief:0", hand.initialisation(term=2), hand.blocks())
    assert (answer.caller, answer.message) == (
        "a push",
        Values(generation=1, version=0, max_steps=10, ticket=False, term=2),
    )


def test_a_commit_that_cannot_follow_ends_the_server():
    hand = Hand(servers=2, updates="sync")
    hand.initialise()
    [end] = hand.say("ps:0", Commit(generation=1, version=3, contributors=((0, 1, 0),)), server=1)
    assert end.failed.startswith("ps:1 cannot follow ps:0: commit of version 3 cannot follow version 0")


def test_a_replica_is_let_go_when_the_last_step_is_saved(hand):
    question = Pull(generation=1, at_least=0, wait_s=5.0, concluded=True)
    assert hand.say("worker:0", question) == []
    assert only(hand.say("worker:1", Conclude(generation=1))) == Refusal(
        reason="only chief:0 may conclude a generation, not worker:1"
    )
    answers = hand.say("chief:0", Conclude(generation=1))
    assert [(a.caller, a.message) for a in answers] == [
        ("chief:0", Conclude(generation=1)),
        ("worker:0", Conclude(generation=1)),
    ]
    assert only(hand.say("worker:0", question)) == Conclude(generation=1)


def test_one_who_is_a_generation_behind_is_told_that_there_is_a_later_one(hand):
    hand.initialise(generation=2)
    before = hand.image()
    for [answer] in (hand.push("worker:0"), hand.pull("worker:0", at_least=9)):
        assert answer.message == Values(generation=2, version=0, max_steps=10, ticket=False)
        assert answer.blocks == []
    assert hand.image() == before


def test_only_the_leader_initialises(hand):
    before = hand.image()
    [answer] = hand.say("worker:0", hand.initialisation(generation=2), hand.blocks())
    assert answer.message == Refusal(reason="only chief:0 may initialise variables, not worker:0")
    assert hand.image() == before


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"plan": {}}, None),
        ({"plan": {"servers": 1, "variables": [{"name": "x"}]}}, None),
        ({"plan": {"servers": 0, "variables": []}}, []),
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
    before, rule = hand.image(), hand.servers[0].control.training
    message = hand.initialisation(generation=2, **changes)
    answer = only(hand.say("chief:0", message, hand.blocks() if blocks is None else blocks))
    assert isinstance(answer, Refusal), answer
    assert hand.image() == before
    assert hand.servers[0].control.training == rule
    assert isinstance(only(hand.pull("chief:0")), Values)


def test_slots_of_a_checkpoint_are_restored_and_those_of_a_wrong_size_refused():
    hand = Hand(optimizer=optimizers.SGD(0.5, momentum=0.9))
    message = hand.initialisation(slots=("m",), version=3, seen=[("worker:0", 1, 8)])
    for wrong in (np.ones(1, np.float32), np.ones(7, np.float64), np.ones(8, np.float32)):
        answer = only(hand.say("chief:0", message, [*hand.blocks(), wrong]))
        assert isinstance(answer, Refusal)
        assert hand.servers[0].held is None
    assert (
        only(hand.say("chief:0", message, [*hand.blocks(), np.arange(7, dtype=np.float32)])) == Initialised()
    )
    assert hand.servers[0].held.store.parts[0]["m"].tolist() == list(range(7))
    assert only(hand.push("worker:0", sequence=8, base=3)).duplicate


def test_a_server_with_nothing_to_hold_takes_part():
    hand = Hand(
        servers=3, variables=[VariableSpec("one", (2,))], optimizer=optimizers.Adagrad(0.1), updates="async"
    )
    assert hand.initialise() == [Initialised()] * 3
    message = hand.initialisation(generation=2, slots=("accumulator",))
    assert only(hand.say("chief:0", message, [], server=2)) == Initialised()
    assert only(hand.push("worker:0", server=2, generation=2)).verdict is Verdict.ACCEPTED
    reply = only(hand.say("chief:0", Snapshot(at_least=0, wait_s=0.0), server=2))
    assert (reply.state.version, reply.slots) == (1, ("accumulator",))


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
    assert only(hand.push("worker:0", blocks=_nan(hand), finite=False)).verdict is Verdict.REFUSED, (
        "it may go on"
    )


@pytest.mark.parametrize("task", ["ps:0", "evaluator:0"])
def test_who_is_no_replica_may_not_push(hand, task):
    before = hand.image()
    assert (
        "is not a replica of this run; replicas are chief:0, worker:0, worker:1"
        in only(hand.push(task)).reason
    )
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
    assert (
        "worker:0 from version 0"
        in only(hand.push("worker:0", sequence=2, blocks=_nan(hand), finite=False)).reason
    )


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
    assert only(hand.say("worker:0", Hello(run_id="r", cluster_hash="h", task="worker:0"))) == Refusal(
        reason="ps:0 does not take Hello messages"
    )
