"""Runs a `ParameterServer`: its messages, its lock, its clock. It decides nothing.

One lock is held while the machine takes a message and while what it answered is cut into bytes, so a reply is
one version of every shard, never a mixture
(docs/design/protocol.md#whole-versions), and a push is applied whole or not at all.
"""

import math
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

from dtrain.cluster import Role, TaskId
from dtrain.config import AsyncSection, SyncSection
from dtrain.control.interface import Action, Decide, End, Later, Note, Redeliver, Report, Send
from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import (
    AnyMessage,
    Commit,
    Complete,
    Heartbeat,
    Hello,
    Initialise,
    Load,
    Push,
    Release,
    Share,
    Subscribe,
)
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.control_host import UNANSWERED
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.parameter_server.machine import ParameterServer
from dtrain.runs.events import DecidedEvent
from dtrain.runs.reporting import Reporter
from dtrain.types import Blocks
from dtrain.wire.channel import Answer, Caller
from dtrain.wire.frames import MEMORY_BYTES, UNKNOWN, Frame, Limits, Payload
from dtrain.wire.handshake import refusal
from dtrain.wire.peer import Connect, Peer

HEADER_BYTES = 1 << 20
"""The longest header of a message that is not the leader's."""

_task = cache(TaskId.parse)


class ServerHandler:
    """Joins a machine to a service."""

    def __init__(
        self,
        machine: ParameterServer,
        hello: Hello,
        reporter: Reporter,
        *,
        callers: set[Caller] | None = None,
        to_host: Connect | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin.

        Args:
            callers: filled with the open connections; the machine's allocator looks which of them read.
            to_host: opens a connection to the control host, where synchronous training is decided; None: this
                server is the control host.
        """
        self.machine = machine
        self.clock = clock
        self._now = clock.now
        self.reporter = reporter
        self.ended = clock.event()
        self.failure: str | None = None
        self._decisions: DecisionLink | None = None
        self._lease: HeartbeatLink | None = None
        self._to_host = to_host
        host = machine.cluster.control_host
        assert host is not None  # a cluster with a server has one
        self._host = host
        self._hello = hello
        self._leader = str(machine.cluster.leader)
        self._lock = threading.Lock()
        self._callers = set() if callers is None else callers
        self._late: list[str] = []
        self._begun = False
        self._go_on = self._go_on_traced if reporter.trace.on else machine.go_on
        self._receive = self._receive_traced if reporter.trace.on else machine.receive

    def limits(self, hello: Hello) -> Limits:
        """See `Handler.limits`: the leader's variables may be of any size; others send a gradient at most.

        A task cannot know that this server has been started again, or holds the variables of another call of
        `fit`. So what is longer is dropped, and its message is answered as the machine answers it. A row of a
        table has 2 bytes at least, and travels with a number of 8.
        """
        if hello.task == self._leader:
            return UNKNOWN
        held = self.machine.held
        nbytes = self.machine.shared.nbytes + (0 if held is None else 5 * held.store.nbytes)
        return Limits(HEADER_BYTES, HEADER_BYTES + nbytes, MEMORY_BYTES)

    @property
    def answers_at_once(self) -> bool:
        """Whether a push is answered at once, as in async; in sync it waits for the others."""
        return isinstance(self.machine.control.training, AsyncSection)

    def refuse(self, hello: Hello) -> str | None:
        return refusal(self._hello, hello) or self.machine.control.roster.refusal(_task(hello.task))

    def received(self, caller: Caller, frame: Frame) -> Answer:
        sender = _task(caller.hello.task)
        with self._lock:
            begun_s = self.reporter.begins()
            self._callers.add(caller)
            if isinstance(frame.message, Push) and self.answers_at_once:
                caller.has_read()  # it waits for other values; the next version may be made in that place
            if isinstance(frame.message, Heartbeat):  # its answer tells of this server too
                self.machine.control.roster.statuses[self._hello.task] = self.reporter.current()
            self._carry_out(self._receive(caller, sender, frame.message, frame.blocks, self._now()))
            self.reporter.slow_down(begun_s)
            self._report_progress(frame.message)
            if isinstance(frame.message, Initialise | Load):
                self._follow_decisions()
        return UNANSWERED.get(type(frame.message), Answer.ONE)

    def joined(self, lease: HeartbeatLink) -> None:
        """Take the lease of this server at the control host: the host's end is this server's end."""
        self._lease = lease

    @property
    def follows(self) -> bool:
        return self._decisions is not None

    def _follow_decisions(self) -> None:
        """Follow the control host from the first term on that trains synchronously."""
        held = self.machine.held
        if (
            self._decisions is None
            and self._to_host is not None
            and held is not None
            and isinstance(held.training, SyncSection)
        ):
            self._decisions = DecisionLink(self, self._to_host, self.clock)

    def disconnected(self, caller: Caller) -> None:
        with self._lock:
            self._callers.discard(caller)
            self.machine.disconnected(caller, caller.reading)
            if not (connections := self._connections()):  # it may have been the last one before the end
                self._carry_out(self.machine.tick(self._now(), connections))

    def decided(self, said: Commit | Release) -> None:
        with self._lock:
            self._carry_out(self._receive(None, self._host, said, (), self._now()))
            self._report_progress(said)

    def position(self) -> tuple[Subscribe, list[Complete]]:
        with self._lock:
            return self.machine.position()

    def tick(self) -> None:
        with self._lock:
            roster = self.machine.control.roster
            if self._late != (late := roster.latecomers(self.machine.held)):
                self._late = late
                self.reporter.waiting(
                    f"{', '.join(late)} to come and learn that training has ended" if late else None
                )
            if self._lease is not None and roster.farewell:
                self._lease.hurry()  # the control host may have gone
            self._carry_out(self.machine.tick(self._now(), self._connections()))

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.ended.set()

    def close(self) -> None:
        if self._decisions is not None:
            self._decisions.close()
        if self._lease is not None:  # after the farewell the control host may be gone for good
            self._lease.close(patient=not self.machine.control.roster.farewell)

    @property
    def host(self) -> str:
        return str(self._host)

    @property
    def leader_is_there(self) -> bool:
        with self._lock:
            leads = any(caller.hello.task == self._leader for caller in self._callers)
            return leads and not self.machine.control.roster.farewell

    @property
    def saved_step(self) -> int | None:
        with self._lock:
            said = self.machine.control.roster.statuses.get(self._leader)
            return None if said is None else said.saved_step

    def _connections(self) -> int:
        others = sum(_task(caller.hello.task).role is not Role.PS for caller in self._callers)
        lease = self._lease
        host_is_there = lease is None or (lease.failure is None and not lease.away)
        return others + (not self.machine.control.hosts and host_is_there)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        """Do one thing after the other; a version that goes to many is one payload."""
        payload: Payload | None = None
        made = -1
        for action in actions:
            match action:
                case Send(caller, message, blocks) if blocks:
                    version = self.machine.held.rule.version if self.machine.held else 0
                    if payload is None or payload.blocks is not blocks or made != version:
                        payload, made = Payload(blocks), version
                    # opaque to the machine only
                    caller.send(message, blocks, payload)  # type: ignore[attr-defined]
                case Send(caller, message):
                    caller.send(message)  # type: ignore[attr-defined]
                case Decide() | Redeliver():
                    self._carry_out(self._go_on(action, self._now()))
                case Report(message) if self._decisions is not None:
                    self._decisions.report(message)
                case Note(event):
                    self.reporter.trace.event(event)
                case End(None):
                    self.ended.set()
                case End(str(reason)):
                    self.fail(reason)

    def _go_on_traced(self, action: Later, now: float) -> list[Action]:
        """Go on, and keep in the trace what was decided and how long it took to apply it."""
        with self._applying():
            actions = self.machine.go_on(action, now)
        if isinstance(action, Decide) and isinstance(action.message, Commit):
            ranks = tuple(rank for rank, _, _ in action.message.contributors)
            self.reporter.trace.event(DecidedEvent(step=action.message.version + 1, ranks=ranks))
        return actions

    def _receive_traced(
        self, caller: Hashable, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float
    ) -> list[Action]:
        """Let the machine receive, and keep in the trace how long it took to apply an update."""
        with self._applying():
            return self.machine.receive(caller, sender, message, blocks, now)

    @contextmanager
    def _applying(self) -> Iterator[None]:
        """Trace a span for what is done meanwhile, if that makes a version of the term."""
        begun_s = self._now()
        held = self.machine.held
        before = None if held is None else held.version
        yield
        if held is not None and held.version != before:
            self.reporter.trace.span("apply", begun_s, self._now())

    def _report_progress(self, message: AnyMessage) -> None:
        held = self.machine.held
        if held is not None and held.rule.version != self.reporter.status.step:
            self.reporter.progress(held.rule.version)
            self.reporter.status.max_steps = held.max_steps
            self.reporter.status.rolled_back_steps = held.begun.lineage.rolled_back_steps
        if isinstance(message, Initialise | Share):
            self.reporter.waiting(None)
        if isinstance(message, Initialise) and held is not None and not self._begun:
            self._begun = True
            self.reporter.announce(
                f"{self.machine.cluster.leader} is there and training begins at step {held.version}"
            )


class DecisionLink:
    """A server's two connections to the control host: for reports of complete contributions, and for commits.

    When either breaks, both are opened again, and messages that the host may have missed are sent again: rule
    *One decision* (docs/design/protocol.md#one-decision).
    """

    def __init__(self, handler: ServerHandler, connect: Connect, clock: Clock = SYSTEM) -> None:
        self._handler = handler
        new = partial(Peer, handler.host, connect, patience_s=math.inf, clock=clock)
        self._commits = new(greeting=lambda: [handler.position()[0]])
        self._reports = new(greeting=lambda: handler.position()[1])
        self.report = self._reports.notify  # what is lost with the connection is in the next greeting
        for peer, name in ((self._commits, "commits"), (self._reports, "reports")):
            clock.start(partial(self._follow, peer), name)

    def close(self) -> None:
        for peer in (self._commits, self._reports):
            peer.abort("this server ends")

    def _follow(self, peer: Peer) -> None:
        """Carry out what comes. On the connection of reports nothing does: it is only opened again."""
        try:
            while True:
                try:
                    match peer.receive().message:
                        case Commit() | Release() as said:
                            self._handler.decided(said)
                            continue
                except PeerRefusedError:
                    pass
                peer.close()  # what is no decision is not obeyed: ask again, from where this server stands
        except PeerLostError:
            pass  # the patience is endless: `close` was called
        except (
            Exception
        ) as error:  # without decisions every task would wait for this server, and none would know why
            self._handler.fail(
                f"the decisions of {self._handler.host} cannot be followed: {type(error).__name__}: {error}"
            )
            raise
