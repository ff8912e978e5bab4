"""A task that has the run's secret and says what its role never says is refused, and changes nothing."""

import re

import msgspec
import pytest
from roles.by_hand import TASKS, Hand
from row_by_row import every_row

from dtrain.cluster import JOINING, TaskId
from dtrain.control.roster import EVALUATOR_LIMIT_BYTES, JOINED_MAX, STATUS_LIMIT_BYTES
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
    Sums,
)
from dtrain.messages.membership import TaskStatus
from dtrain.wire.frames import HEADER_LIMIT_BYTES

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


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"message": "x" * STATUS_LIMIT_BYTES}, "a status of 16.* bytes; at most 16384 make sense"),
        ({"monotonic_s": float("nan")}, "a status of no time"),
        ({"progress_monotonic_s": float("inf")}, "a status of no time"),
    ],
)
def test_a_status_that_no_record_can_hold_is_refused(hand, facts, said):
    (refused,) = hand.beat("worker:0", status=TaskStatus("worker:0", 1, "here", **facts))
    assert re.fullmatch(f"worker:0 reports {said}", refused.message.reason)


def test_statuses_of_all_tasks_that_may_connect_fit_into_one_message():
    tasks = JOINED_MAX + 100
    assert tasks * STATUS_LIMIT_BYTES + EVALUATOR_LIMIT_BYTES < HEADER_LIMIT_BYTES


@pytest.mark.parametrize("message", FORGED[-2:], ids=lambda message: type(message).__name__)
def test_a_server_that_the_cluster_does_not_name_reports_nothing(hand, message):
    (refused,) = hand.say("ps:7", message)
    assert refused.message.reason == "only servers report to ps:0, not ps:7"


@pytest.mark.parametrize("task", ["ps:2", "chief:1", "evaluator:1", "ps:999999999"])
def test_a_task_that_the_cluster_does_not_name_may_not_connect(hand, task):
    assert hand.servers[0].control.roster.refusal(TaskId.parse(task)) == (
        f"the cluster of this run has no {task}"
    )


@pytest.mark.parametrize("task", ["chief:0", "worker:1", "ps:1", "evaluator:0", "worker:2", "worker:999999"])
def test_the_run_s_own_tasks_and_workers_that_join_may_connect(hand, task):
    assert hand.servers[0].control.roster.refusal(TaskId.parse(task)) is None


def test_workers_join_up_to_the_limit(hand, monkeypatch):
    monkeypatch.setattr("dtrain.control.roster.JOINED_MAX", 3)
    roster = hand.servers[0].control.roster
    for index in (2, 3, 4):
        assert roster.refusal(TaskId.parse(f"worker:{index}")) is None
        hand.beat(f"worker:{index}")
    assert roster.refusal(TaskId.parse("worker:5")) == "3 workers have joined this run, and no more may"
    assert roster.refusal(TaskId.parse("worker:4")) is None, "it connects again"
    assert roster.refusal(JOINING) is None, "it is refused when it asks for an index"


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


@every_row("updates", ["sync", "async"])
@every_row("totals", [b"abc", b"", bytes(8), b"\xff" * 16])
def test_sums_that_are_none_are_refused_before_they_are_part_of_a_version(updates, totals):
    hand = Hand(updates=updates)
    hand.initialise(steps_per_epoch=5)
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    before = hand.image()
    (refused,) = hand.push("worker:0", sums=Sums(names=("loss",), totals=totals))
    assert refused.message.reason.startswith("a gradient of worker:0 does not fit: sums of ")
    assert hand.image() == before


@every_row("field", ["examples", "empty", "ordinal", "base_version"])
@every_row("updates", ["sync", "async"])
def test_a_number_below_zero_in_a_push_is_refused_and_changes_nothing(updates, field):
    hand = Hand(updates=updates)
    hand.initialise()
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    before = hand.image()
    (refused,) = hand.push("worker:0", **{field: -1})
    assert refused.message.reason.startswith("a gradient of worker:0 does not fit: a number of")
    assert hand.image() == before


def test_a_push_that_speaks_of_endless_empty_parts_is_dealt_with_at_once():
    hand = Hand(updates="sync")
    hand.initialise()
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    hand.push("worker:0", empty=2**62)
    for task in ("chief:0", "worker:1"):
        hand.push(task)
    assert hand.version() == 1


def test_in_async_a_batch_that_cannot_have_been_dealt_is_refused_and_changes_nothing():
    hand = Hand(updates="async", servers=2)
    hand.initialise()
    before = hand.image()
    (refused,) = hand.push("worker:0", server=1, part=10**9)
    assert refused.message.reason.startswith(
        "a gradient of worker:0 does not fit: batch 1000000000 is 1000000000 beyond the newest one here"
    )
    assert hand.image() == before


def test_in_async_a_gradient_of_no_examples_is_refused_and_changes_nothing():
    hand = Hand(updates="async")
    hand.initialise()
    hand.beat("worker:0")
    hand.pull("worker:0")
    before = hand.image()
    (refused,) = hand.push("worker:0", blocks=(), examples=0)
    assert refused.message.reason == (
        "a gradient of worker:0 does not fit: it is of no examples, and no batch is in async"
    )
    assert hand.image() == before
