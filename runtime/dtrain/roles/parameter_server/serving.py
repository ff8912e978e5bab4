"""The process of a parameter server: its service, its lease, the order to stop, and its threads' policy.

A server that is told to stop while its leader is connected gives notice in its status and goes on serving:
`Departure` says how long.

One that does not (Linux' SCHED_BATCH) lets the replica that has woken it say all that it has to say, and is
woken less often: the smallest steps are a tenth faster. But beside programs that compute without a pause it
would wait for a whole slice of their time, again and again, and steps take twice as long: then it interrupts,
as processes do, and tries now and then whether it still has to.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config.choices import Transport
from dtrain.errors import DtrainError, PeerLostError
from dtrain.parameters.shared_buffers import ReadBufferAllocator, SharedBufferAllocator
from dtrain.process import life_line
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import Event
from dtrain.process.resources import allow_open_files
from dtrain.roles.control_host import TICK_S
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.joining import admission_by
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.roles.parameter_server.machine import Departure, ParameterServer
from dtrain.runs.reporting import Reporter
from dtrain.wire.addresses import wait_for_name
from dtrain.wire.channel import Caller
from dtrain.wire.connecting import Connector
from dtrain.wire.interruptible import in_own_thread
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.service import TaskService

WAIT_LIMIT_S = 0.2e-3
"""Mean wait from waking to running: 0.03 to 0.06 ms beside idle replicas, 0.3 to 0.9 beside busy ones."""
ENOUGH_SLICES = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 8.0, 64.0


class Preemption(msgspec.Struct):
    """Looks at how long a server waits for a core.

    Attributes:
        pause_s: how long it will, the next time: twice as long each time, until all has been well for a
            minute.
        since_s: when that has changed last.
    """

    interrupts: bool = False
    pause_s: float = FIRST_PAUSE_S
    since_s: float = 0.0
    _waited_s: float = 0.0
    _slices: int | None = None

    def update(self, waited_s: float, slices: int, now: float) -> bool:
        """Return whether the server interrupts other threads from now on. It has waited `waited_s` for a
        core, ready to run, and got one `slices` times.
        """
        waits_s, got = waited_s - self._waited_s, slices - (slices if self._slices is None else self._slices)
        self._waited_s, self._slices = waited_s, slices
        if self.interrupts:
            if now - self.since_s >= self.pause_s:
                self._change(now)
                self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        elif got >= ENOUGH_SLICES and waits_s > WAIT_LIMIT_S * got:
            self._change(now)
        elif now - self.since_s >= LONGEST_PAUSE_S:
            self.pause_s = FIRST_PAUSE_S
        return self.interrupts

    def _change(self, now: float) -> None:
        self.interrupts, self.since_s = not self.interrupts, now


class ThreadPolicy:
    """The kernel's, unless this process was given one or the kernel keeps no account of waits."""

    def __init__(self, now: float) -> None:
        self._preemption: Preemption | None = None
        with contextlib.suppress(OSError):
            alone = threading.current_thread() is threading.main_thread()  # else it is the chief's process
            if alone and os.sched_getscheduler(0) == os.SCHED_OTHER and any(True for _ in _accounts()):
                _set(os.SCHED_BATCH)
                self._preemption = Preemption(since_s=now)

    def update(self, now: float) -> None:
        """Choose the policy anew; to be called about twice a second."""
        if self._preemption is None:
            return
        accounts = list(_accounts())
        before = self._preemption.interrupts
        interrupts = self._preemption.update(sum(a for a, _ in accounts), sum(b for _, b in accounts), now)
        if interrupts != before:
            with contextlib.suppress(OSError):
                _set(os.SCHED_OTHER if interrupts else os.SCHED_BATCH)


def _accounts() -> Iterator[tuple[float, int]]:
    """Return each thread's seconds of waiting for a core, and its turns. Source: proc_pid_schedstat(5)."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it has ended; this kernel keeps no such account
            _, waited_ns, slices = (thread / "schedstat").read_text().split()
            yield int(waited_ns) / 1e9, int(slices)


def _set(policy: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))


def serve(assignment: TaskAssignment) -> None:
    """Be the parameter server of `assignment` until all is done.

    Raises:
        SpecError: its address cannot be bound, or its own name not be resolved in time.
        PeerLostError: the leader is gone for good.
        SystemExit: with code 143, it was told to stop by SIGTERM, and no task needs it any more.
    """
    address = assignment.address
    allow_open_files()  # a connection is one, and two come of every replica
    policy = ThreadPolicy(time.monotonic())
    reporter = Reporter(assignment)
    tell = partial(reporter.unreached, "its own name", address)
    if assignment.bind is None:
        in_own_thread(partial(wait_for_name, address, assignment.spec.wait.start_s, tell), "own name")
    credentials = Credentials.of(assignment, reporter.warn)
    reporter.certificate = credentials.certificate_life
    spec, now_s = assignment.spec, time.monotonic()
    evaluators = spec.cluster.count(Role.EVALUATOR)
    by_grpc = assignment.spec.on_servers.transport == Transport.GRPC
    callers: set[Caller] = set()
    allocator = (ReadBufferAllocator if by_grpc else SharedBufferAllocator)(callers)
    machine = ParameterServer(
        assignment.task.index, assignment.cluster, spec.on_servers, now_s, evaluators, spec.wait, allocator
    )
    machine.control.admission = admission_by(assignment)
    machine.control.roster.watched = assignment.watched
    connector = Connector(
        assignment, credentials, reporter.unreached, spec.on_servers.transport, machine.control.book
    )
    host = assignment.cluster.control_host
    to_host = None if host is None or machine.control.hosts else partial(connector.connect, host)
    handler = ServerHandler(machine, credentials.hello, reporter, callers=callers, to_host=to_host)
    service = TaskService(handler, assignment, credentials, spec.on_servers.transport)
    try:
        reporter.introduce()
        if service.listening.why is not None:
            reporter.announce(service.listening.why)
        reporter.running()
        reporter.waiting(f"{assignment.cluster.leader} to initialise the variables")
        if to_host is not None and host is not None:
            handler.joined(_lease(assignment, host, connector, reporter))
        _serve_until_the_end(handler, policy, reporter, spec.wait.grace(assignment.launched))
    finally:
        try:
            handler.close()
            service.stop()
        finally:  # also when the order to stop comes just now: the last account is what `status` shows
            reporter.close()
    if handler.failure:
        raise PeerLostError(handler.failure)


def _serve_until_the_end(
    handler: ServerHandler, policy: ThreadPolicy, reporter: Reporter, grace_s: float
) -> None:
    order = OrderToStop()
    departure: Departure | None = None
    with order.heeded():
        while not order.wait_for(handler.ended, TICK_S):
            handler.tick()
            held = handler.machine.held
            now_s = time.monotonic()
            if held is not None:
                policy.update(now_s)
            if order.given_s is None:
                continue
            if departure is None:
                departure = Departure(order.given_s, grace_s, 0 if held is None else held.version)
                reporter.leaving()
            if departure.may_leave(handler.leader_is_there, handler.saved_step, now_s):
                break
    if order.given_s is not None:
        raise SystemExit(128 + signal.SIGTERM)


class _Woken(Exception):  # noqa: N818  (no error: it ends a wait)
    """The order to stop has come while the main thread waited."""


class OrderToStop:
    """SIGTERM of a server, which goes on serving for a while; a second one kills it.

    Attributes:
        given_s: when it came, by the monotonic clock; None: it has not.
    """

    def __init__(self) -> None:
        self.given_s: float | None = None
        self._waits = False
        self._before: Callable[[int, FrameType | None], object] | int | None = signal.SIG_DFL

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle the signal; its former handler is called at the first one, but its exit is ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = signal.signal(signal.SIGTERM, self._come)
        try:
            yield
        finally:
            if self.given_s is None:
                signal.signal(signal.SIGTERM, self._before)

    def wait_for(self, event: Event, timeout_s: float) -> bool:
        """Wait for an event; return at once when the order comes, with whether the event has."""
        try:
            self._waits = True
            event.wait(timeout_s)
        except _Woken:
            pass
        finally:
            self._waits = False
        return event.is_set()

    def _come(self, number: int, frame: FrameType | None) -> None:
        life_line.die_of(number)
        self.given_s = time.monotonic()
        if callable(self._before):
            with contextlib.suppress(SystemExit):
                self._before(number, frame)
        if self._waits:
            raise _Woken


def _lease(
    assignment: TaskAssignment, host: TaskId, connector: Connector, reporter: Reporter
) -> HeartbeatLink:
    try:
        return HeartbeatLink(
            str(host),
            partial(connector.connect_heart, host),
            reporter,
            connect_s=assignment.connect_s,
            patience_s=math.inf,
            book=connector.book,
            moved_to=assignment.moved_to,
        )
    except DtrainError as error:
        raise type(error)(f"{assignment.task} cannot join the run: {error}") from None
