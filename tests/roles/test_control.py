"""The control plane where there are no servers: the leader hosts it, and its machine needs nothing else."""

from types import SimpleNamespace

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.control.actions import Decide, End
from dtrain.control.machine import ControlPlane
from dtrain.messages import Farewell, Heartbeat, Hello, Initialise, Lineage, Push, Refusal
from dtrain.protocol.membership import LEASE_S

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
        generation=1,
        plan={},
        training=TRAINING,
        optimizer={},
        version=0,
        max_steps=10,
        directory="run",
        dealt=(2, 0, (), False),
        term=1,
    )
    steps = made.steps_of(message, TRAINING)
    standing = SimpleNamespace(
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
    made.begin(standing, TRAINING, 0.0)
    return made


def test_the_leader_hosts_it_where_there_are_no_servers_and_else_the_first_server():
    assert WORKERS.control_host == WORKERS.leader == TaskId.parse("worker:0")
    with_servers = ClusterSpec.from_lists(chief=["c:0"], worker=["w:0"], ps=["p:0", "p:1"])
    assert with_servers.control_host == TaskId.parse("ps:0")


def test_it_deals_the_parts_by_rank_and_decides_when_the_batch_is_complete(control):
    steps = control.standing.steps
    assert [steps.permit(rank) for rank in (0, 1)] == [(True, 0), (True, 1)]
    pushes = [
        Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="", part=part, term=1)
        for part in (0, 1)
    ]
    assert steps.offered((0, 1, 0), pushes[0], 0.0) == []
    [decision] = steps.offered((1, 1, 0), pushes[1], 0.0)
    assert isinstance(decision, Decide)
    assert decision.message.contributors == ((0, 1, 0), (1, 1, 0))
    assert (steps.version, steps.permit(0)) == (1, (True, 2))


def test_the_part_of_a_member_whose_lease_is_over_is_dealt_to_one_that_lives(control):
    steps = control.standing.steps
    for task in ("worker:0", "worker:1"):
        beat(control, task, 0.0)
    assert [steps.permit(rank) for rank in (0, 1)] == [(True, 0), (True, 1)]
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
