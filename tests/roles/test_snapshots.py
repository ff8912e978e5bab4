"""An asynchronous checkpoint: tickets are held back until every server has answered, and for no longer."""

import pytest
from roles.by_hand import Hand, only

from dtrain.messages import Resume, Snapshot, Values
from dtrain.roles.snapshots import MARK_S

WAIT_S = 2.0


def marked():
    """Two servers; both replicas have a ticket when the leader marks ps:0."""
    hand = Hand(workers=1, servers=2, updates="async")
    hand.initialise()
    for task in ("chief:0", "worker:0"):
        hand.beat(task)
        hand.pull(task)
    assert hand.say("chief:0", Snapshot(0, WAIT_S, mark=True), caller="control") == []
    return hand


def test_the_first_server_answers_when_the_pushes_under_way_have_arrived_and_gives_no_ticket_before_that():
    hand = marked()
    assert not only(hand.push("chief:0")).ticket
    assert hand.pull("chief:0") == []
    to_worker, to_leader = hand.push("worker:0")
    assert not to_worker.message.ticket
    assert (to_leader.caller, to_leader.message.version, to_leader.message.whole) == ("control", 2, True)
    assert hand.pull("worker:0") == []
    assert {type(action.message) for action in hand.say("chief:0", Resume())} == {Values}


def test_the_others_answer_when_they_have_seen_what_the_first_had():
    hand = marked()
    hand.push("worker:0", server=1)
    question = Snapshot(0, WAIT_S, covers=[("chief:0", 1, 1), ("worker:0", 1, 1)])
    assert hand.say("chief:0", question, server=1, caller="control") == []
    answers = hand.push("chief:0", server=1)
    assert [answer.caller for answer in answers] == ["chief:0", "control"]
    assert answers[1].message.whole


def test_one_that_takes_too_long_is_not_waited_for():
    hand = marked()
    hand.now = WAIT_S
    [late] = hand.tick()
    assert not late.message.whole
    assert not only(hand.push("chief:0")).ticket
    hand.now = WAIT_S + MARK_S
    hand.beat("chief:0", incarnation=1, process=1)
    hand.tick()
    assert only(hand.push("chief:0", sequence=2)).ticket


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_at_the_end_nothing_is_under_way(updates):
    hand = Hand(workers=0, updates=updates, max_steps=1)
    hand.initialise()
    hand.push("chief:0")
    assert only(hand.say("chief:0", Snapshot(1, WAIT_S, mark=True))).whole
