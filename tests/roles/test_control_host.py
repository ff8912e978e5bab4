"""A cluster without servers: its leader hosts the control plane, and members reach it by its task over a real service.

The part that holds arrays is a toy which averages gradients; the control plane's machine deals and decides.
"""

import socket
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dtrain.cluster import AddressBook, ClusterSpec, TaskId
from dtrain.config import RunSpec, training_section
from dtrain.control.machine import TAKEN, ControlPlane
from dtrain.errors import PeerLostError, PeerRefusedError, SpecError, WaitTimeoutError
from dtrain.messages import (
    Commit,
    Farewell,
    Heartbeat,
    Initialise,
    Lineage,
    Pull,
    Push,
    Refusal,
    Reply,
    Values,
    Verdict,
)
from dtrain.messages.status import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import SystemClock
from dtrain.protocol.membership import LEASE_S
from dtrain.roles import control_host, heartbeat
from dtrain.roles.control_host import ControlHandler
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.wire.channel import Answer
from dtrain.wire.connector import Connector
from dtrain.wire.frames import Limits
from dtrain.wire.peer import Peer
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.service import SideBySide, TaskService

TASKS, STEPS, TIMEOUT_S = 3, 6, 30.0
TRAINING = training_section(updates="sync", too_few="shrink")


class Ahead(SystemClock):
    """The system's clock, set ahead."""

    ahead_s = 0.0

    def now(self):
        return super().now() + self.ahead_s


class Averages:
    """The leader's part that holds arrays: one value, changed by the mean of the gradients of each version.

    It is how training stands as well, for the control plane.
    """

    answers_at_once = False

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    generation = term = 1
    lineage = Lineage()
    max_steps = STEPS
    directory = "run"
    held_back = False

    def __init__(self, control, hello, clock):
        message = Initialise(
            generation=1,
            plan={},
            training=TRAINING,
            optimizer={},
            version=0,
            max_steps=STEPS,
            directory="run",
            dealt=(TASKS, 0, (), False),
            term=1,
        )
        self.steps = control.steps_of(message, TRAINING)
        self.value = np.zeros(2)
        self.held = {}
        self.waiting = {}
        self.handler = ControlHandler(control, hello, decide=self.decide, clock=clock)
        self.handler.ask(lambda control, now: control.begin(self, TRAINING, now))

    version = property(lambda self: self.steps.version)
    failed = property(lambda self: self.steps.failed)
    finished = property(lambda self: self.version >= STEPS)

    def refuse(self, hello):
        return None

    def received(self, caller, frame):
        self.handler.ask(partial(self._take, caller, frame))
        return Answer.ONE

    def _take(self, caller, frame, control, now):
        rank = control.roster.ranks[caller.hello.task]
        message = frame.message
        if isinstance(message, Pull):
            may, part = self.steps.permit(rank)
            caller.send(
                Values(
                    generation=1, version=self.version, max_steps=STEPS, ticket=may, part=part, parts=TASKS
                ),
                [self.value],
            )
            return []
        contribution = rank, message.incarnation, message.ordinal
        self.held[contribution] = np.array(frame.blocks[0])
        self.waiting[contribution] = caller
        return self.steps.offered(contribution, message, now)

    def decide(self, decision):
        message = decision.message
        if not isinstance(message, Commit):  # another part for a replica that waits
            caller = self.waiting.pop(message.contribution)
            caller.send(Reply(verdict=Verdict.PENDING, version=self.version, part=decision.part))
            return []
        self.value = self.value - np.mean([self.held[each] for each in message.contributors], axis=0)
        waiting, self.waiting, self.held = self.waiting, {}, {}
        for (rank, _, _), caller in waiting.items():
            may, part = self.steps.permit(rank)
            caller.send(
                Reply(verdict=Verdict.ACCEPTED, version=self.version, ticket=may, part=part), [self.value]
            )
        return []

    def disconnected(self, caller):
        pass


def connector(assignment, transport="auto"):
    credentials, book = Credentials.of(assignment, print), AddressBook(assignment.cluster)
    return Connector(assignment, credentials, lambda *_: None, transport, book)


class Member:
    """One task: its lease at the leader, and its connection for tensors, both found by the leader's id."""

    def __init__(self, cluster, task, **more):
        self.status = TaskStatus(task=task, pid=1, host="h")
        self.assignment = TaskAssignment(TaskId.parse(task), cluster, RunSpec(), "run", **more)
        self.connector = connector(self.assignment)
        self.host = cluster.control_host
        self.dead = False
        self.parts = []
        self.beats = 0
        self.beaten = threading.Condition()
        self.hearts = []
        self.link = HeartbeatLink(
            str(self.host),
            self._heart,
            self,
            connect_s=TIMEOUT_S,
            patience_s=TIMEOUT_S,
            book=self.connector.book,
            moved_to=self.assignment.moved_to,
        )
        self.link.on_reply = self._replied
        self.peer = Peer(str(self.host), partial(self.connector.connect, self.host), patience_s=TIMEOUT_S)

    def current(self):
        return self.status

    def behind(self, server, others):
        pass

    def _heart(self, timeout_s):
        if self.dead:
            raise WaitTimeoutError("the process is gone")
        self.hearts.append(self.connector.connect_heart(self.host, timeout_s))
        return self.hearts[-1]

    def _replied(self, reply):
        with self.beaten:
            self.beats += 1
            self.beaten.notify_all()

    def until_two_more_beats(self):
        """The second of them was asked after this call."""
        with self.beaten:
            target = self.beats + 2
            assert self.beaten.wait_for(lambda: self.beats >= target, TIMEOUT_S)

    def die(self):
        self.dead = True
        self.hearts[-1].abort("the process is gone")
        self.peer.abort("the process is gone")

    def ask(self, message, blocks=()):
        self.peer.send(message, blocks)
        return self.peer.receive()

    def train(self, until=STEPS):
        """Push part after part; returns the last value."""
        answer = self.ask(Pull(generation=1, at_least=0, wait_s=1.0))
        value, version, part, ordinal = answer.blocks[0], answer.message.version, answer.message.part, 0
        sequence = 0
        while version < until:
            self.parts.append(part)
            sequence += 1
            push = Push(
                generation=1,
                incarnation=self.link.incarnation,
                sequence=sequence,
                base_version=version,
                plan_hash="",
                ordinal=ordinal,
                part=part,
                term=1,
            )
            answer = self.ask(push, [gradient(part)])
            reply, part = answer.message, answer.message.part
            ordinal = ordinal + 1 if reply.verdict is Verdict.PENDING else 0
            if reply.verdict is Verdict.ACCEPTED:
                value, version = np.array(answer.blocks[0]), reply.version
        return value


def gradient(part):
    """The same whichever task computes it."""
    return np.array([part, 1.0])


EXPECTED = [-float(sum(range(STEPS * TASKS)) / TASKS), -float(STEPS)]


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
