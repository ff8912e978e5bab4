"""The control plane where there are no servers: the leader hosts it, and its machine needs nothing else."""

from types import SimpleNamespace

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.control.interface import Decide, End
from dtrain.control.machine import ControlPlane
from dtrain.messages import Farewell, Heartbeat, Hello, Initialise, Lineage, NotReady, Push, Refusal
from dtrain.protocol.membership import LEASE_S
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState

WORKERS = ClusterSpec.from_lists(worker=["w:0", "w:1"])
TRAINING = training_section(updates="sync", too_few="shrink")


def told(caller, control, message, now=0.0):
    actions = control.receive(caller, TaskId.parse(caller), message, now)
    return actions[0].message, actions[1:]


def beat(control, task, now, **more):
    return told(task, control, Heartbeat(process=(0, 1.0), incarnation=1, **more), now)


@pytest.fixture
def control():
    """The host of two workers, in a term of ten steps with two parts a batch."""
    made = ControlPlane(TaskId.parse("worker:0"), WORKERS, TRAINING, 0.0)
    message = Initialise(
        state=FitState(max_steps=10, dealt=Dealt(2)),
        training=TRAINING,
        directory="run",
        term=1,
    )
    steps = made.steps_of(message, TRAINING)
    progress = SimpleNamespace(
        generation=1,
        term=1,
        lineage=Lineage(),
        max_steps=10,
        directory="run",
        steps=steps,
        version=0,
        finished=False,
        held_back=False,
        failed=None,
    )
    made.begin(progress, TRAINING, 0.0)
    return made


def test_the_leader_hosts_it_where_there_are_no_servers_and_else_the_first_server():
    assert WORKERS.control_host == WORKERS.leader == TaskId.parse("worker:0")
    with_servers = ClusterSpec.from_lists(chief=["c:0"], worker=["w:0"], ps=["p:0", "p:1"])
    assert with_servers.control_host == TaskId.parse("ps:0")


def test_it_deals_the_parts_by_rank_and_decides_when_the_batch_is_complete(control):
    steps = control.progress.steps
    assert [steps.next_part(rank) for rank in (0, 1)] == [0, 1]
    pushes = [
        Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="", part=part, term=1)
        for part in (0, 1)
    ]
    assert steps.offered((0, 1, 0), pushes[0], 0.0) == []
    [decision] = steps.offered((1, 1, 0), pushes[1], 0.0)
    assert isinstance(decision, Decide)
    assert decision.message.contributors == ((0, 1, 0), (1, 1, 0))
    assert (steps.version, steps.next_part(0)) == (1, 2)


def test_the_part_of_a_member_whose_lease_is_over_is_dealt_to_one_that_lives(control):
    steps = control.progress.steps
    for task in ("worker:0", "worker:1"):
        beat(control, task, 0.0)
    assert [steps.next_part(rank) for rank in (0, 1)] == [0, 1]
    beat(control, "worker:0", LEASE_S)
    push = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="", part=0, term=1)
    assert steps.offered((0, 1, 0), push, LEASE_S) == []
    decision, lost = control.tick(LEASE_S + 0.1)
    assert str(lost.event) == "member lost: member worker:1"
    assert (decision.message.contribution, decision.part) == ((0, 1, 0), 1)


def test_it_answers_how_the_run_stands_and_takes_nothing_that_is_for_others(control):
    answer, _ = beat(control, "worker:1", 0.0)
    assert (answer.incarnation, answer.term, answer.directory) == (1, 1, "run")
    refusal, _ = told("worker:1", control, Hello(run_id="r", cluster_hash="h", task="worker:1"))
    assert isinstance(refusal, Refusal)


def test_after_the_farewell_it_ends_when_no_connection_is_left(control):
    told("worker:0", control, Farewell())
    assert control.end(1.0, 1) == []
    assert control.end(1.0, 0) == [End()]


# The leader's place and address


CHIEF = TaskId.parse("chief:0")


@pytest.fixture
def host():
    """A first server that the chief's process of attempt 1 has told of its address, over connection "first"."""
    cluster = ClusterSpec.from_lists(chief=["c:0"], worker=["w:0"], ps=["p:0"])
    made = ControlPlane(TaskId.parse("ps:0"), cluster, TRAINING, 0.0)
    assert made.receive("first", CHIEF, of_chief(1, "moved:1"), 0.0)[0].message.incarnation == 1
    return made


def of_chief(attempt, moved_to=None, **more):
    return Heartbeat(process=(attempt, 1.0), incarnation=0, moved_to=moved_to, **more)


def said(host, caller, message, now):
    return host.receive(caller, CHIEF, message, now)[0].message


@pytest.mark.parametrize(
    "claim",
    [
        of_chief(2, "stranger:1"),
        of_chief(2),
        of_chief(2, leaving=True),
        of_chief(1, "stranger:1"),
        of_chief(1),
    ],
    ids=["a move", "the place", "a goodbye", "a move by the process itself", "a move home"],
)
def test_nobody_takes_the_leaders_place_or_address_while_its_lease_and_its_connection_stand(host, claim):
    for now in (1.0, LEASE_S - 0.1):
        assert isinstance(said(host, "second", claim, now), NotReady)
    assert said(host, "first", of_chief(1, "moved:1"), LEASE_S - 0.1).incarnation == 1
    assert host.book.moved == {"chief:0": ("moved:1", 1)}


def test_a_leader_whose_connection_has_ended_is_replaced_at_once(host):
    host.disconnected("first")
    assert said(host, "second", of_chief(2, "moved:2"), 0.0).incarnation == 2
    assert host.book.moved == {"chief:0": ("moved:2", 2)}
    assert said(host, "third", of_chief(1, "moved:1"), 0.0) == Refusal(
        reason="another process has taken the place of chief:0"
    )
    assert isinstance(said(host, "third", of_chief(3, "moved:3"), 0.0), NotReady)


def test_a_leader_whose_lease_is_over_is_replaced_though_its_connection_stands(host):
    host.tick(LEASE_S + 0.1)
    assert said(host, "second", of_chief(2, "moved:2"), LEASE_S + 0.1).incarnation == 2


def test_the_same_process_may_come_over_another_connection(host):
    """Its connection broke, and the server has not heard of that yet."""
    assert said(host, "second", of_chief(1, "moved:1"), LEASE_S - 0.1).incarnation == 1
    host.disconnected("first")
    assert isinstance(said(host, "third", of_chief(2, "moved:2"), LEASE_S), NotReady)


def test_of_two_processes_of_another_task_the_later_one_is_the_task_at_once(host):
    worker = TaskId.parse("worker:0")
    for attempt, caller in ((1, "first of it"), (2, "second of it")):
        [answer, *_] = host.receive(caller, worker, of_chief(attempt, f"moved:{attempt}"), 0.0)
        assert answer.message.incarnation == attempt
    assert host.book.moved["worker:0"] == ("moved:2", 2)
