"""Members of a cluster without servers: a toy that averages gradients, dealt and decided by the control plane."""

import threading
from functools import partial

import numpy as np

from dtrain.cluster import AddressBook, TaskId
from dtrain.config import RunSpec, training_section
from dtrain.errors import WaitTimeoutError
from dtrain.messages import (
    Commit,
    Initialise,
    Lineage,
    Pull,
    Push,
    Reply,
    Values,
    Verdict,
)
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import Clock
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.control_host import ControlHandler
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.wire.channel import Answer
from dtrain.wire.connecting import Connector
from dtrain.wire.frames import Limits
from dtrain.wire.peer import Peer
from dtrain.wire.security.credentials import Credentials

TASKS, STEPS, TIMEOUT_S = 3, 6, 30.0
TRAINING = training_section(updates="sync", too_few="shrink")


class Ahead(Clock):
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
            state=FitState(max_steps=STEPS, dealt=Dealt(TASKS)),
            training=TRAINING,
            directory="run",
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
            part = self.steps.next_part(rank)
            caller.send(
                Values(
                    generation=1,
                    version=self.version,
                    max_steps=STEPS,
                    ticket=part != NO_PART,
                    part=part,
                    parts=TASKS,
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
            part = self.steps.next_part(rank)
            caller.send(
                Reply(verdict=Verdict.ACCEPTED, version=self.version, ticket=part != NO_PART, part=part),
                [self.value],
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
