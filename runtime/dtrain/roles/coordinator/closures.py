"""Closures on their way: the coordinator's service hands them out, and workers run them.

The queue decides (`protocol.closure_queue`); here are its lock and its connections. A worker is its
connection: when that is gone, its closure is handed to another one.
"""

import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, ProgramError, WaitTimeoutError
from dtrain.messages import (
    AnyMessage,
    Attend,
    Attended,
    Closure,
    Failure,
    Hello,
    Refusal,
    RefusalKind,
    TakeClosure,
)
from dtrain.parameters.placement import Plan
from dtrain.process.clock import LOOK_S, SYSTEM, Clock
from dtrain.protocol.closure_queue import ClosureQueue
from dtrain.runs.reporting import Account
from dtrain.wire.channel import Answer, Caller
from dtrain.wire.frames import UNKNOWN, Frame, Limits
from dtrain.wire.handshake import refusal
from dtrain.wire.peer import Connect, Peer

FAREWELL_S = 5.0
"""How long the end of the program waits for workers to hear of it; others learn it from the servers."""


class Scheduled(msgspec.Struct, eq=False):
    """A closure, and what came of it.

    Attributes:
        arguments: encoded.
        number: from 1, once it is scheduled.
        ended: whether one of the next three holds.
        failure: the exception that has ended it.
        cancelled: it was never begun, because an earlier one had failed.
    """

    module: str
    function: str
    arguments: bytes
    number: int = 0
    ended: bool = False
    result: bytes = b""
    failure: Failure | None = None
    cancelled: bool = False
    worker: str = ""

    def __str__(self) -> str:
        return f"closure {self.number} ({self.function})"


class ClosureService:
    """Joins the queue to a service (see `Handler`), and to the thread of the coordinator's program."""

    answers_at_once = True

    def __init__(
        self,
        hello: Hello,
        cluster: ClusterSpec,
        session: int,
        plan: Plan,
        reporter: Account,
        *,
        start_s: float,
        patience_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin without a worker.

        Args:
            cluster: whose workers may come.
            plan: of the variables, for workers to compare with their own.
            start_s, patience_s: how long all workers may be missing at first, and later.
        """
        self._hello = hello
        self._leader = TaskId.parse(hello.task)
        self._workers = [task for task in cluster.tasks(Role.WORKER) if task != self._leader]
        self._attended = Attended(session=session, plan=plan.to_dict())
        self._reporter = reporter
        self._clock = clock
        self._until_s = clock.now() + start_s
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._queue: ClosureQueue[Scheduled] = ClosureQueue()
        self._takers: list[Caller] = []
        self._there: set[Caller] = set()
        self._ended = False
        self._finished = 0
        self._unfit: str | None = None

    # The program's side

    def schedule(self, closure: Scheduled) -> bool:
        """Put a closure into the queue, and return True; if an earlier error is not taken yet, do nothing."""
        with self._changed:
            if self.failed:
                return False
            closure.number = self._queue.put(closure)
            self._hand_out()
            return True

    @property
    def failed(self) -> bool:
        return self._queue.error is not None

    def take_error(self) -> Scheduled | None:
        """Return the first error once every closure has ended. Raises a WaitTimeoutError without workers."""
        self._wait(lambda: self._queue.empty)
        with self._changed:
            return self._queue.take_error()

    @property
    def done(self) -> bool:
        with self._changed:
            return self._queue.empty

    def wait_for(self, closure: Scheduled) -> None:
        """Wait until a closure has ended. Raises a WaitTimeoutError if no worker is there for too long."""
        self._wait(lambda: closure.ended)

    def _wait(self, ready: Callable[[], bool]) -> None:
        try:
            with self._changed:
                while not ready():
                    self.check()
                    self._reporter.waiting(self._whom())
                    self._changed.wait(LOOK_S)
        finally:
            self._reporter.waiting(None)

    def check(self) -> None:
        """Raise a `ProgramError` if a worker cannot run the closures of this program."""
        if self._unfit is not None:
            raise ProgramError(self._unfit)

    def _whom(self) -> str:
        if self._there:
            running = self._queue.running
            names = sorted({caller.hello.task for caller in self._there if caller in running})
            return ", ".join(names) or "a worker that is free"
        names = [str(task) for task in self._workers]
        if self._clock.now() >= self._until_s:
            raise WaitTimeoutError(
                f"no worker is there to run closures: waited for {', '.join(names)}; "
                f"{len(self._queue.running) or 'no'} closures were under way"
            )
        return ", ".join(names)

    def end(self) -> None:
        """Tell the workers that the program has ended, and wait a moment for them to hear it."""
        with self._changed:
            self._ended = True
            for caller in self._takers:
                caller.send(_END)
            self._takers.clear()
            until_s = self._clock.now() + FAREWELL_S
            while self._there and (left_s := until_s - self._clock.now()) > 0:
                self._changed.wait(left_s)

    # The workers' side

    def limits(self, hello: Hello) -> Limits:
        return UNKNOWN

    def refuse(self, hello: Hello) -> str | None:
        if reason := refusal(self._hello, hello):
            return reason
        if TaskId.parse(hello.task) not in self._workers:
            return f"{hello.task} is no worker of this run, and takes no closures"
        return None

    def received(self, caller: Caller, frame: Frame) -> Answer:
        with self._changed:
            self._there.add(caller)
            match frame.message:
                case Attend():
                    caller.send(self._attended)
                case TakeClosure(session=session) if session != self._attended.session:
                    caller.send(self._attended)
                case TakeClosure() as message:
                    self._report(caller, message, frame)
                    self._takers.append(caller)
                    if self._ended:
                        self._takers.remove(caller)
                        caller.send(_END)
                    self._hand_out()
                case other:
                    caller.send(Refusal(reason=f"{self._leader} does not take {type(other).__name__}"))
            self._changed.notify_all()
        return Answer.ONE

    def _report(self, caller: Caller, message: TakeClosure, frame: Frame) -> None:
        if not message.closure:
            if message.failure is not None:
                self._unfit = f"{caller.hello.task} cannot run closures: {message.failure.message}"
            return
        cancelled: Sequence[Scheduled] = ()
        if message.failure is None:
            closure = self._queue.finished(caller, message.closure)
        else:
            closure, cancelled = self._queue.failed(caller, message.closure)
        if closure is None:
            return
        closure.worker = caller.hello.task
        closure.failure = message.failure
        closure.result = frame.blocks[0].tobytes() if frame.blocks else b""
        closure.ended = True
        for each in cancelled:
            each.cancelled = each.ended = True
        self._finished += 1
        self._reporter.progress(self._finished)

    def _hand_out(self) -> None:
        while self._takers and (taken := self._queue.assign(self._takers[0])) is not None:
            number, closure = taken
            message: AnyMessage = Closure(
                number=number,
                settled=self._queue.settled,
                module=closure.module,
                function=closure.function,
            )
            self._takers.pop(0).send(message, [np.frombuffer(closure.arguments, np.uint8)])

    def disconnected(self, caller: Caller) -> None:
        with self._changed:
            self._queue.lost(caller)
            if caller in self._takers:
                self._takers.remove(caller)
            if caller in self._there:
                self._there.remove(caller)
                if not self._there:
                    self._until_s = self._clock.now() + self._patience_s
            self._hand_out()
            self._changed.notify_all()


_END = Refusal(reason="the coordinator's program has ended", kind=RefusalKind.ENDED)


Run = Callable[[Closure, bytes], bytes | Failure]
"""Runs a closure with its encoded arguments; returns its encoded result, or why it has failed."""


class Attendant:
    """A worker on its connection to the coordinator."""

    def __init__(
        self,
        coordinator: str,
        connect: Connect,
        reporter: Account,
        *,
        begin: Callable[[Attended], None],
        run: Run,
        connect_s: float,
        patience_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make no connection yet.

        Args:
            connect_s, patience_s: how long the coordinator may take to be there at first, and be away later.
        """
        self._peer = Peer(coordinator, connect, patience_s=patience_s, clock=clock)
        self._reporter = reporter
        self._begin = begin
        self._run = run
        self._connect_s = connect_s
        self._session = 0
        self._over = False

    def end(self, reason: str, *, failed: bool) -> None:
        """From any thread: end the service, which returns; or raises a `PeerLostError` with this reason."""
        self._over = not failed
        self._peer.abort(reason)

    def serve(self) -> None:
        """Run one closure after the other; return when the coordinator's program has ended.

        Raises:
            WaitTimeoutError: the coordinator does not come.
            PeerLostError: it is gone for good.
            PeerRefusedError: it does not want this task.
            ProgramError: a session cannot be begun by this task's program.
        """
        peer = self._peer
        self._reporter.waiting(peer.name)
        peer.open(self._connect_s)
        ended = 0
        try:
            peer.send(Attend())
            while (frame := self._answer()) is not None:
                self._reporter.waiting(None)
                match frame.message:
                    case Attended() as attended:
                        self._attended(attended)
                    case Closure() as closure:
                        self._called(closure, frame)
                        ended += 1
                        self._reporter.progress(ended)
                    case Refusal(kind=RefusalKind.ENDED):
                        return
                    case other:
                        reason = other.reason if isinstance(other, Refusal) else type(other).__name__
                        raise PeerRefusedError(f"{peer.name} answered: {reason}")
                self._reporter.waiting(peer.name)
        finally:
            self._reporter.waiting(None)
            peer.close()

    def _attended(self, attended: Attended) -> None:
        """Begin a session, and ask for its first closure; or say why that cannot be."""
        self._session = attended.session
        try:
            self._begin(attended)
        except DtrainError as error:
            why = Failure(kind=type(error).__name__, message=str(error), trace="")
            self._peer.notify(TakeClosure(session=self._session, failure=why))
            raise
        self._peer.send(TakeClosure(session=self._session))

    def _called(self, closure: Closure, frame: Frame) -> None:
        came = self._run(closure, frame.blocks[0].tobytes() if frame.blocks else b"")
        failure = came if isinstance(came, Failure) else None
        blocks = () if isinstance(came, Failure) else [np.frombuffer(came, np.uint8)]
        question = TakeClosure(session=self._session, closure=closure.number, failure=failure)
        self._peer.send(question, blocks)

    def _answer(self) -> Frame | None:
        """Wait for the coordinator's next message; None if the run has ended meanwhile."""
        try:
            return self._peer.receive()
        except PeerLostError:
            if self._over:
                return None
            raise
