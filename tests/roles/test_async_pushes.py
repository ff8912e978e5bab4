"""Asynchronous servers by hand: tickets, staleness, what becomes of the lost."""

import msgspec
import pytest
from roles.by_hand import Hand, asynchronous, lost, only

from dtrain.learning import optimizers
from dtrain.messages import Commit, Complete, Conclude, Reply, Subscribe, Values, Verdict
from dtrain.roles.parameter_server.questions import FEW


def test_every_push_is_applied_on_arrival_and_its_staleness_told():
    hand = asynchronous(workers=1)
    assert only(hand.push("worker:0")) == Reply(verdict=Verdict.ACCEPTED, version=1, accepted=1)
    [answer] = hand.push("chief:0", value=3)
    assert answer.message == Reply(verdict=Verdict.ACCEPTED, version=2, staleness=1, accepted=1)
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
    assert only(hand.push("worker:0")) == Reply(verdict=Verdict.STALE, version=1, staleness=1, stale=1)
    assert hand.image()[2] == before
    hand = asynchronous(stale_gradients="scale")
    for sequence in (1, 2):
        hand.push("chief:0", sequence=sequence, base=sequence - 1, value=0)
    [answer] = hand.push("worker:0", value=4)
    assert answer.message.staleness == 2
    assert answer.blocks[0].tolist() == [-1.0] * 7


@pytest.mark.parametrize(("on_stale", "following"), [("retry_same_batch", 1), ("skip", 4)])
def test_a_batch_whose_gradient_was_dropped_is_computed_again_or_skipped(on_stale, following):
    hand = asynchronous(stale_gradients="drop", max_staleness=0, on_stale=on_stale)
    for task in ("chief:0", "worker:0"):
        hand.pull(task)
    hand.push("chief:0", part=0)
    assert (hand.parts["chief:0"], hand.parts["worker:0"]) == (3, 1)
    assert only(hand.push("worker:0", part=1)).verdict is Verdict.STALE
    assert hand.parts["worker:0"] == following


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
    assert only(hand.push("worker:0", sequence=9, base=0)).verdict is Verdict.STALE
    assert only(hand.push("chief:0", sequence=9, base=0)).ticket


def test_warm_up_is_the_chief_s_alone():
    hand = asynchronous(warmup_steps=1)
    assert only(hand.pull("chief:0")).ticket
    assert hand.pull("worker:0") == []
    assert [(a.caller, a.message.ticket) for a in hand.push("chief:0")] == [
        ("chief:0", True),
        ("worker:0", True),
    ]


def test_a_nan_gives_its_ticket_to_whoever_waits():
    hand = asynchronous(max_steps=1)
    hand.pull("worker:0")
    assert hand.pull("worker:1") == [], "the only step is worker:0's to make"
    refused, given = hand.push("worker:0", finite=False)
    assert (refused.caller, refused.message.verdict, refused.message.ticket) == (
        "worker:0",
        Verdict.REFUSED,
        False,
    )
    assert (given.caller, given.message.ticket) == ("worker:1", True)


def test_a_ticket_that_comes_back_goes_to_one_of_many_who_wait():
    hand = asynchronous(workers=FEW + 3, max_steps=1)
    hand.pull("worker:0")
    for index in range(1, FEW + 3):
        assert hand.pull(f"worker:{index}") == []
    _, given = hand.push("worker:0", finite=False)
    assert given.message.ticket


def test_a_server_without_the_gate_lets_everybody_push():
    hand = asynchronous(servers=2, max_steps=1)
    assert only(hand.pull("worker:0", server=1)).ticket
    assert only(hand.push("worker:0", server=1)).ticket


def test_the_one_decision_of_synchronous_training_is_none_of_an_asynchronous_server_s_business():
    hand = asynchronous(servers=2)
    assert (
        hand.say("ps:1", Subscribe(generation=1, version=0))
        == hand.say("ps:1", Complete(generation=1, rank=0, incarnation=1, version=0, ordinal=0))
        == []
    )
    assert hand.say("ps:0", Commit(generation=1, version=0, contributors=()), server=1) == []
    assert hand.servers[1].position() == (Subscribe(generation=0, version=0), [])


def test_a_stale_gradient_is_compensated_for_the_way_the_weights_have_gone():
    hand = Hand(
        updates="async", stale_gradients="compensate", compensation=0.5, optimizer=optimizers.SGD(1.0)
    )
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
    hand.say("chief:0", Conclude(generation=1))
    assert only(hand.beat("worker:1", 1)).waiting_for is None


def test_asynchronous_training_without_anybody_who_could_train_fails_by_name():
    hand = Hand(updates="async", chief_trains=False, too_few_timeout_s=10.0)
    hand.initialise()
    hand.beat("chief:0")
    for hand.now in (61.0, 70.0):  # no replica has come within the time to join
        hand.beat("chief:0", 1)
        hand.tick()
    assert only(hand.beat("chief:0", 1)).failed is None
    hand.now = 72.0
    hand.tick()
    reply = only(hand.beat("chief:0", 1))
    waited = "no live replica could make version 1 for 11.0 s"
    assert (
        reply.failed.reason
        == f"too few replicas: {waited}: worker:0 has not been heard of, worker:1 has not been heard of"
    )
    assert reply.waiting_for == "worker:0, worker:1"


def test_a_contribution_that_another_server_lacks_is_waited_for_there():
    hand = Hand(servers=2, updates="sync", backup_workers=1)
    hand.initialise()
    hand.push("worker:0")
    hand.push("worker:1")
    hand.say("ps:1", Complete(generation=1, rank=1, incarnation=1, version=0, ordinal=0))
    assert only(hand.beat("worker:1")).waiting_for == "ps:1, chief:0"
