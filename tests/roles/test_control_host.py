"""A cluster without servers: its leader hosts the control plane, and members reach it by its task over a real service.

The part that holds arrays is a toy which averages gradients; the control plane's machine deals and decides.
"""

import socket
import threading
from functools import partial

import pytest
from msgspec.structs import replace
from roles.averaging_members import (
    EXPECTED,
    STEPS,
    TASKS,
    TIMEOUT_S,
    TRAINING,
    Ahead,
    Averages,
    Member,
    connector,
)

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import RunSpec
from dtrain.control.machine import TAKEN, ControlPlane
from dtrain.errors import PeerLostError, PeerRefusedError, SpecError
from dtrain.messages import (
    Farewell,
    Heartbeat,
    Hello,
    Pull,
    Refusal,
    RefusalKind,
)
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.membership import LEASE_S
from dtrain.roles import control_host, heartbeat
from dtrain.roles.control_host import ControlHandler
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Frame, Limits
from dtrain.wire.peer import Peer
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.service import SideBySide, TaskService


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def hosted(monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.01)
    monkeypatch.setattr(control_host, "TICK_S", 0.01)
    cluster = ClusterSpec.from_lists(worker=[free_address(), "w:1", "w:2"])
    assignment = TaskAssignment(cluster.control_host, cluster, RunSpec(), "run")
    credentials, clock = Credentials.of(assignment, print), Ahead()
    control = ControlPlane(assignment.task, cluster, TRAINING, clock.now())
    part = Averages(control, credentials.hello, clock)
    service = TaskService(SideBySide(part.handler, part, TAKEN), assignment, credentials, "auto")
    part.handler.start()
    made = [Member(cluster, f"worker:{index}") for index in range(TASKS)]
    yield part.handler, made, clock
    for member in made:
        member.link.close(patient=False)
        member.peer.close()
    part.handler.ended.set()
    service.stop()


def start(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_members_get_ranks_and_parts_and_come_to_an_orderly_end(hosted):
    handler, members, _ = hosted
    runs = [start(member.train) for member in members]
    for thread, _ in runs:
        thread.join(TIMEOUT_S)
    assert [results[0].tolist() for _, results in runs] == [EXPECTED] * TASKS
    assert sorted(part for member in members for part in member.parts) == list(range(STEPS * TASKS))
    refusal = members[1].ask(Farewell()).message
    assert refusal == Refusal(reason="only worker:0 may say farewell, not worker:1")
    assert members[0].ask(Farewell()).message == Farewell()
    assert not handler.ended.is_set(), "members are connected"
    members[1].until_two_more_beats()
    assert members[1].link.reply.ended
    for member in members:
        member.link.close()
        member.peer.close()
    assert handler.ended.wait(TIMEOUT_S)
    assert handler.failure is None


def test_the_parts_of_a_member_whose_lease_is_over_are_computed_by_the_others(hosted):
    _, members, clock = hosted
    dying = members.pop()
    runs = [start(member.train) for member in members]
    dying.train(until=2)
    dying.die()
    assert members[0].link.reply.version < STEPS
    for _ in range(
        int(2 * LEASE_S) + 2
    ):  # a live member's lease never runs out: it is renewed after each half second
        clock.ahead_s += 0.5
        for member in members:
            member.until_two_more_beats()
    for thread, _ in runs:
        thread.join(TIMEOUT_S)
    assert [results[0].tolist() for _, results in runs] == [EXPECTED] * len(members)
    with pytest.raises(PeerLostError):
        dying.ask(Pull(generation=1, at_least=0, wait_s=1.0))


def test_it_refuses_what_is_for_another_kind_of_task_and_another_run(hosted):
    _, members, _ = hosted
    assert isinstance(members[1].ask(Farewell()).message, Refusal)
    assignment = replace(members[1].assignment, run_id="another run")
    with pytest.raises(PeerRefusedError, match="belongs to another run"):
        connector(assignment).connect(assignment.cluster.control_host, TIMEOUT_S).receive()


class Echo:
    """Answers a question with itself."""

    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    def refuse(self, hello):
        return None

    def received(self, caller, frame):
        caller.send(frame.message)
        return Answer.ONE

    def disconnected(self, caller):
        pass


def test_a_task_that_comes_back_at_another_address_is_found_by_its_id(hosted):
    """By gRPC: tasks of one host would find each other without an address."""
    _, members, _ = hosted
    asking = members[0]
    way = connector(asking.assignment, "grpc")
    way.book = asking.connector.book
    moving = TaskId.parse("worker:2")
    peer = Peer("worker:2", partial(way.connect, moving), patience_s=TIMEOUT_S)
    services = []
    try:
        for attempt in (1, 2):
            address = free_address()
            cluster = members[2].assignment.cluster
            members.append(Member(cluster, "worker:2", attempt=attempt, moved_to=address))
            assignment = members[-1].assignment
            services.append(TaskService(Echo(), assignment, Credentials.of(assignment, print), "grpc"))
            asking.until_two_more_beats()
            assert way.book.address(moving) == address
            peer.send(Farewell())
            assert peer.receive().message == Farewell()
            services[-1].stop()
    finally:
        peer.close()
        for service in services:
            service.stop()


@pytest.mark.parametrize("address", ["nowhere", "a:0", "a b:1", "a:1" * 200])
def test_an_address_that_is_none_is_not_told_to_others(hosted, address):
    handler, members, _ = hosted
    beat = Heartbeat(process=(9, 1.0), incarnation=1, moved_to=address)
    assert "worker:1 reports where it serves: expected" in members[1].ask(beat).message.reason
    assert handler.control.book.moved == {}


@pytest.mark.parametrize("address", ["10.0.0.7:2222", "0.0.0.0:2222", "somewhere:2222"])
def test_no_task_listens_where_other_hosts_can_connect_without_a_secret(address):
    cluster = ClusterSpec.from_lists(worker=[address])
    assignment = TaskAssignment(TaskId.parse("worker:0"), cluster, RunSpec(), "run")
    with pytest.raises(SpecError, match=f"worker:0 cannot serve at {address}, which other hosts"):
        TaskService(None, assignment, Credentials.of(assignment, print), "auto")


class Asks:
    """A caller that keeps what it is told."""

    def __init__(self, hello):
        self.hello = hello
        self.told = []

    def send(self, message, blocks=()):
        self.told.append(message)


def test_a_task_that_does_not_lead_sends_others_on():
    cluster = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2"])
    control = ControlPlane(TaskId(Role.WORKER, 0), cluster, TRAINING, 0.0)
    hello = Hello(run_id="r", cluster_hash=cluster.hash, task="worker:0")
    handler = ControlHandler(control, hello, decide=lambda decision: [])
    handler.leads = False
    caller = Asks(Hello(run_id="r", cluster_hash=cluster.hash, task="chief:0"))
    assert handler.received(caller, Frame(Heartbeat(process=(0, 1.0), incarnation=1))) is Answer.ONE
    (told,) = caller.told
    assert told.kind is RefusalKind.NOT_LEADING
    assert "worker:0 does not lead" in told.reason
