"""A task that has the run's secret and says what its role never says is refused, and changes nothing."""

import msgspec
import pytest
from roles.by_hand import Hand

from dtrain.messages import (
    Commit,
    Complete,
    Conclude,
    Farewell,
    Heartbeat,
    Hold,
    Record,
    Refusal,
    Snapshot,
    Subscribe,
)
from dtrain.messages.status import TaskStatus

FORGED = [
    Hold(generation=1, number=(1, 1)),
    Farewell(),
    Conclude(generation=1),
    Record(generation=1),
    Snapshot(at_least=0, wait_s=1.0),
    Commit(generation=1, version=0, contributors=((0, 1, 0),)),
    Complete(generation=1, rank=0, incarnation=1, version=0, ordinal=0),
    Subscribe(generation=1, version=0),
]


@pytest.fixture
def hand():
    hand = Hand(servers=2, updates="sync")
    hand.initialise()
    return hand


@pytest.mark.parametrize("message", FORGED, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("task", ["worker:0", "evaluator:0"])
def test_what_another_role_sends_is_refused_and_changes_nothing(hand, message, task):
    before = hand.image()
    (refused,) = hand.say(task, message)
    assert isinstance(refused.message, Refusal)
    assert task in refused.message.reason
    assert hand.image() == before


def test_a_server_does_not_decide_for_another_one(hand):
    commit = Commit(generation=1, version=0, contributors=((0, 1, 0),))
    (refused,) = hand.say("ps:1", commit, server=1)
    assert refused.message.reason == "only ps:0 decides, not ps:1"


@pytest.mark.parametrize(
    "status",
    [
        TaskStatus("worker:1", 1, "here"),
        TaskStatus("worker:0", 1, "here", evaluations=[{"global_step": 3, "loss": 0.5}]),
    ],
    ids=["of another task", "with evaluations"],
)
def test_a_false_status_is_refused_and_reaches_no_leader(hand, status):
    (refused,) = hand.beat("worker:0", status=status)
    assert isinstance(refused.message, Refusal)
    (reply,) = hand.beat("chief:0")
    assert status not in reply.message.statuses


@pytest.mark.parametrize("evaluation", [{"loss": 0.5}, {"global_step": float("nan")}])
def test_an_evaluation_of_no_step_is_refused(hand, evaluation):
    status = TaskStatus("evaluator:0", 1, "here", evaluations=[evaluation])
    (refused,) = hand.beat("evaluator:0", status=status)
    assert refused.message.reason == "evaluator:0 reports an evaluation of no step"


@pytest.mark.parametrize("began_s", [float("nan"), float("inf")])
def test_a_process_that_began_at_no_time_is_refused(hand, began_s):
    (refused,) = hand.beat("worker:0", process=began_s)
    assert refused.message.reason == "worker:0 reports no time at which its process began"


def test_a_status_of_another_form_is_no_message():
    beat = Heartbeat(process=(0, 1.0), incarnation=1, status=TaskStatus("worker:0", 1, "here"))
    told = msgspec.to_builtins(beat)
    odd = [{} if isinstance(each, dict) else each for each in told]
    assert odd != told
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(odd), type=Heartbeat)
