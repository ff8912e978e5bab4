"""A coordinator and its workers: on the tasks of a cluster with parameter servers, or alone in one process.

The queue decides (`protocol.closure_queue`); here are its lock and its connections. A worker is its
connection: when that is gone, its closure is handed to another one. Alone, one worker is a thread of this
process, and the variables lie here: queue, worker's loop and messages are those of a cluster, so a program
that works here works there.
"""

import builtins
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np
from msgspec.structs import replace

from dtrain import errors
from dtrain.cluster import Role
from dtrain.data.dataset import Dataset
from dtrain.formats import plain_data
from dtrain.messages import Attended, Closure, Failure, Hello, Refusal, RefusalKind, TakeClosure
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan
from dtrain.process.clock import LOOK_S, SYSTEM, Clock
from dtrain.protocol.closure_queue import ClosureQueue
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.parameter_server.shared_variables import SharedVariables
from dtrain.runs.reporting import Account
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.coordinator import closures
from dtrain.strategies.coordinator.values import Ask, ProgramValues, Servers, VariableClient
from dtrain.strategies.replicas.values import mapped
from dtrain.wire.channel import Answer, Caller, MemoryChannel
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import UNKNOWN, Frame, Limits
from dtrain.wire.handshake import refusal
from dtrain.wire.peer import Peer
from dtrain.wire.service import TaskService

PATIENCE_S = 60.0
FAREWELL_S = 5.0
"""How long the end of the program waits for workers to hear of it; others learn it from the servers."""


class RemoteValue:
    """The result of a closure, which a worker runs; see `tf.distribute.coordinator.RemoteValue`."""

    def fetch(self) -> Any:
        """Wait for the result and return it.

        Raises:
            CancelledError: the closure was not begun, because an earlier one had failed.
            Exception: what has ended the closure; every time.
        """
        raise NotImplementedError

    def get(self) -> Any:
        """Return the same as `fetch`."""
        return self.fetch()


class RemoteValueImpl(RemoteValue):
    """A closure, and what came of it.

    Attributes:
        call: as it travels; its number is 0 until it is scheduled.
        arguments: encoded.
        ended: whether there is a result, or an error.
    """

    ended = False
    result = b""
    error: Exception | None = None

    def __init__(self, coordination: "Coordination", call: Closure, arguments: bytes) -> None:
        self._coordination = coordination
        self.call = call
        self.arguments = arguments

    def __str__(self) -> str:
        return f"closure {self.call.number} ({self.call.function})"

    def fetch(self) -> Any:
        self._coordination.wait_for(lambda: self.ended)
        if self.error is not None:
            raise self.error.with_traceback(None)
        return plain_data.decode(self.result)

    def end(self, result: bytes = b"", error: Exception | None = None) -> None:
        self.result, self.error, self.ended = result, error, True


def _exception(failure: Failure, where: str) -> Exception:
    """Return the exception that has ended a closure, as it was in the worker.

    Of Python's own exceptions and dtrain's it is of the same class; of others a `ClosureError`.
    """
    kind = getattr(errors, failure.kind, None) or getattr(builtins, failure.kind, None)
    error: Exception = errors.ClosureError(f"{where} has ended with {failure.kind}: {failure.message}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # one of Python's that wants more than a text
            error = kind(f"{failure.message} ({where})")
    error.add_note(failure.trace)
    return error


@dataclass(eq=False)
class Coordination:
    """Joins the queue to a service (see `Handler`), and to the thread of the coordinator's program.

    Attributes:
        names: of the program.
        hello: of this task, as others know it.
        workers: who may come.
        attended: what workers are told of the session.
        start_s: how long all workers may be missing at first.
        patience_s: how long they may be missing later.
    """

    names: closures.ProgramNames
    hello: Hello
    workers: Sequence[str]
    attended: Attended
    reporter: Account = field(default_factory=Account)
    start_s: float = PATIENCE_S
    patience_s: float = PATIENCE_S
    clock: Clock = SYSTEM
    answers_at_once = True

    def __post_init__(self) -> None:
        self.closing = ExitStack()
        self._until_s = self.clock.now() + self.start_s
        self._changed = threading.Condition()
        self._queue: ClosureQueue[RemoteValueImpl] = ClosureQueue()
        self._takers: list[Caller] = []
        self._there: set[Caller] = set()
        self._over = False
        self._ended = 0
        self._unfit: str | None = None

    # The program's side

    def schedule(self, closure: RemoteValueImpl) -> None:
        """Put a closure into the queue. Raises the error of an earlier one instead, as `check`."""
        with self._changed:
            self.check()
            closure.call = replace(closure.call, number=self._queue.put(closure))
            self._hand_out()

    def check(self, *, wait: bool = False) -> bool:
        """Return whether every closure has ended, with `wait` once that is so.

        Raises the error of the closure that failed first, once, as soon as no closure runs; a
        `WaitTimeoutError` without workers; a `ProgramError` if one cannot run the closures of this program.
        """
        with self._changed:
            self._check_workers()
            if wait or self._queue.error is not None:
                self.wait_for(lambda: self._queue.empty)
                failed = self._queue.take_error()
                if failed is not None and failed.error is not None:
                    raise failed.error.with_traceback(None)
            return self._queue.empty

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition. Raises errors as `check`."""
        try:
            with self._changed:
                while not ready():
                    self._check_workers()
                    self.reporter.waiting(self._whom())
                    self._changed.wait(LOOK_S)
        finally:
            self.reporter.waiting(None)

    def _check_workers(self) -> None:
        if self._unfit is not None:
            raise errors.ProgramError(self._unfit)

    def _whom(self) -> str:
        running = self._queue.running
        if self._there:
            busy = {caller.hello.task for caller in self._there if caller in running}
            return ", ".join(sorted(busy)) or "a worker that is free"
        names = ", ".join(self.workers)
        if self.clock.now() >= self._until_s:
            what = f"no worker is there to run closures: waited for {names}"
            raise errors.WaitTimeoutError(f"{what}; {len(running) or 'no'} closures were under way")
        return names

    def end(self, *, farewell: bool) -> None:
        """End the program's part; with `farewell` no process of the coordinator will come any more: tell the
        workers, and wait a moment for them to hear it.
        """
        with self._changed:
            self._over = farewell
            self._hand_out()
            self._changed.wait_for(lambda: not (farewell and self._there), FAREWELL_S)
        self.closing.close()

    # The workers' side

    def limits(self, hello: Hello) -> Limits:
        return UNKNOWN

    def refuse(self, hello: Hello) -> str | None:
        if hello.task in self.workers:
            return refusal(self.hello, hello)
        return f"{hello.task} is no worker of this run, and takes no closures"

    def received(self, caller: Caller, frame: Frame) -> Answer:
        with self._changed:
            self._there.add(caller)
            match frame.message:
                case TakeClosure(session=session) as message if session == self.attended.session:
                    self._report(caller, message, frame)
                    self._takers.append(caller)
                    self._hand_out()
                case TakeClosure():
                    caller.send(self.attended)
                case other:
                    caller.send(Refusal(reason=f"{self.hello.task} does not take {type(other).__name__}"))
            self._changed.notify_all()
        return Answer.ONE

    def _report(self, caller: Caller, message: TakeClosure, frame: Frame) -> None:
        failure, worker = message.failure, caller.hello.task
        if failure is not None and not message.closure:
            self._unfit = f"{worker} cannot run closures: {failure.message}"
        if not (ended := self._queue.ended(caller, message.closure, failed=failure is not None)):
            return
        closure, *cancelled = ended
        error = None if failure is None else _exception(failure, f"{closure} on {worker}")
        closure.end(frame.blocks[0].tobytes() if frame.blocks else b"", error)
        for each in cancelled:
            why = f"{each} was not begun, because an earlier one had failed; schedule it again"
            each.end(error=errors.CancelledError(why))
        self._ended += 1
        self.reporter.progress(self._ended)

    def _hand_out(self) -> None:
        while self._takers:
            if self._over:
                self._takers.pop(0).send(_END)
                continue
            if (closure := self._queue.assign(self._takers[0])) is None:
                return
            message = replace(closure.call, settled=self._queue.settled)
            self._takers.pop(0).send(message, [np.frombuffer(closure.arguments, np.uint8)])

    def disconnected(self, caller: Caller) -> None:
        with self._changed:
            self._queue.lost(caller)
            if caller in self._takers:
                self._takers.remove(caller)
            if caller in self._there:
                self._there.remove(caller)
                if not self._there:
                    self._until_s = self.clock.now() + self.patience_s
            self._hand_out()
            self._changed.notify_all()


_END = Refusal(reason="the coordinator's program has ended", kind=RefusalKind.ENDED)


def _begin(values: ProgramValues, ask: Ask, plan: Plan, session: int) -> Attended:
    """Give the servers the first values, and use them there from now on; return what workers are told."""
    client = VariableClient(ask, plan, session)
    client.share(values.first_values())
    values.use(client)
    return Attended(session=session, plan=plan.to_dict())


def coordinate(values: ProgramValues, servers: Servers, task: ClusterTask, session: int) -> Coordination:
    """Begin to coordinate a cluster.

    Raises:
        SpecError: the cluster has no worker, or this task cannot serve at its address.
        PeerError: a server does not come, or refuses.
    """
    assignment, section = task.assignment, task.assignment.spec.on_servers
    cluster = assignment.cluster
    workers = [str(each) for each in cluster.tasks(Role.WORKER) if each != cluster.leader]
    if not workers:
        raise errors.SpecError(
            "ClusterCoordinator: expected workers beside the chief, found none in the cluster; in a "
            "process without a cluster, and so without dt.distribute.Server, a thread runs closures"
        )
    plan = placement.plan(values.specs, len(cluster.servers), section.placement, section.partitioner)
    attended = _begin(values, servers.ask, plan, session)
    waits_s = assignment.connect_s, assignment.spec.wait.server_s
    made = Coordination(values.names, assignment.hello(), workers, attended, task.reporter, *waits_s)
    made.closing.callback(servers.close)
    made.closing.callback(TaskService(made, assignment, task.credentials, section.transport).stop)
    task.reporter.running()
    return made


def coordinate_alone(values: ProgramValues) -> Coordination:
    """Begin to coordinate a program that runs without a cluster, with one worker."""
    chief, worker = (Hello(run_id="", cluster_hash="", task=task) for task in ("chief:0", "worker:0"))
    answer, plan = SharedVariables(0, 1).answer, placement.plan(values.specs, 1)
    attended = _begin(values, lambda asked: [answer(message, each) for _, message, each in asked], plan, 1)
    made = Coordination(values.names, chief, [worker.task], attended)
    peer = Peer(chief.task, lambda _: MemoryChannel(chief.task, made, worker), patience_s=PATIENCE_S)
    run = closures.Execution(values.names).run
    SYSTEM.start(partial(closures.work, peer, Account(), PATIENCE_S, lambda attended: run), "worker")
    return made


def serve(
    values: ProgramValues, servers: Servers, task: ClusterTask, lease: HeartbeatLink, connect: ConnectTask
) -> NoReturn:
    """Run closures until the coordinator's program has ended; then raise SystemExit(0).

    Raises:
        ProgramError: this task's program has other variables than the coordinator's.
        PeerError: the coordinator or a server is gone for good.
    """
    assignment, reporter = task.assignment, task.reporter
    leader = assignment.cluster.leader
    assert leader is not None  # a cluster with tasks that train has one
    peer = Peer(str(leader), partial(connect, leader), patience_s=assignment.spec.wait.leader_s)

    def begin(attended: Attended) -> closures.Run:
        plan = Plan.from_dict(attended.plan)
        values.check(plan)
        client = VariableClient(servers.ask, plan, attended.session)
        values.use(client)
        execution = closures.Execution(values.names, reporter.activity)

        def run(closure: Closure, arguments: bytes) -> bytes | Failure:
            begun_s = reporter.begins()
            client.within(closure.number, closure.settled)
            came = execution.run(closure, arguments)
            reporter.slow_down(begun_s)
            return came

        return run

    def failed(reason: str) -> None:
        servers.abort(reason)
        peer.abort(reason)

    lease.on_failure = failed
    lease.on_reply = lambda reply: peer.abort("the run has ended") if reply.ended else None
    reporter.running()
    try:
        closures.work(peer, reporter, assignment.connect_s, begin)
    except errors.PeerLostError:
        if not lease.reply.ended:
            raise
    servers.close()
    raise SystemExit(0)


class ClusterCoordinator:
    """The coordinator of a cluster with parameter servers.

    See `tf.distribute.coordinator.ClusterCoordinator`. Every task runs the program. At its first `schedule`,
    `create_per_worker_dataset`, `join`, `done` or `fetch` the workers begin to run closures, and never return
    from there; the chief goes on alone. A program that runs without a cluster has one worker, a thread.

    Attributes:
        strategy: whose workers run the closures.
    """

    strategy: Any

    def __new__(cls, strategy: Any) -> "ClusterCoordinator":
        """Return the coordinator of a strategy, which has one.

        Raises:
            NotAStrategyError: the strategy has no parameter servers.
        """
        if not hasattr(strategy, "coordinate"):
            raise errors.NotAStrategyError(
                f"ClusterCoordinator: expected a ParameterServerStrategy, found {type(strategy).__name__}"
            )
        made: ClusterCoordinator | None = strategy.__dict__.get("_cluster_coordinator")
        if made is None:
            made = super().__new__(cls)
            made.strategy = strategy
            strategy._cluster_coordinator = made
            strategy.has_coordinator = True
            strategy.loops.refusal = None  # each closure is the only replica
        return made

    def schedule(
        self, fn: Callable[..., Any], args: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Have a worker call a function, as soon as one is free; return at once.

        It is called once, and what it changes on the servers is changed once, also if the worker dies
        meanwhile and another one begins again. What it does elsewhere may then happen twice.

        Args:
            fn: defined at module level before the first call of the coordinator; functions do not travel.
            args, kwargs: plain data, and per-worker iterators.

        Raises:
            NotAFunctionError: the workers have no such function.
            TypeError: the arguments are not those of `fn`.
            InputError: an argument is no plain data.
            Exception: what has ended an earlier closure, once.
        """
        begun = self._begun()
        module, name = begun.names.of_function(fn, "schedule")
        if args is not None and not isinstance(args, list | tuple):
            raise errors.InputError(
                f"schedule: expected a list or tuple as args, found {type(args).__name__}"
            )
        given = tuple(args or ()), dict(kwargs or {})
        try:
            inspect.signature(fn).bind(*given[0], **given[1])
        except TypeError as error:
            raise TypeError(f"schedule: {name}{inspect.signature(fn)}: {error}") from None
        arguments = closures.encode(given, f"schedule: an argument of {name}", _reference)
        closure = RemoteValueImpl(begun, Closure(module=module, function=name), arguments)
        begun.schedule(closure)
        return closure

    def join(self) -> None:
        """Wait until every closure has ended.

        Raises:
            Exception: what has ended one, once; the closures that were not begun are cancelled.
            WaitTimeoutError: all workers are gone for too long.
        """
        self._begun().check(wait=True)

    def done(self) -> bool:
        """Return whether every closure has ended.

        Raises:
            Exception: as `join`.
        """
        return self._begun().check()

    def fetch(self, val: Any) -> Any:
        """Return a nest with the result in the place of each `RemoteValue`; waits for them.

        Raises:
            Exception: what has ended one of the closures, every time.
            CancelledError: one was not begun.
        """
        self._begun()
        return mapped(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val)

    def create_per_worker_dataset(
        self, dataset_fn: Callable[[], Any] | Dataset
    ) -> closures.PerWorkerDatasetFromDatasetFunction | closures.PerWorkerDatasetFromDataset:
        """Let every worker make a dataset of its own; `iter` of it is an argument for closures.

        A worker that is started again makes it again.

        Args:
            dataset_fn: a function without arguments that returns a dataset; or a dataset. Workers find it by
                its name at module level.

        Raises:
            InputError: it is neither.
            NotAFunctionError: the workers have none of this name.
        """
        names, what = self._begun().names, "create_per_worker_dataset"
        if isinstance(dataset_fn, Dataset):
            return closures.PerWorkerDatasetFromDataset(*names.of_object(dataset_fn, what))
        if callable(dataset_fn):
            return closures.PerWorkerDatasetFromDatasetFunction(*names.of_function(dataset_fn, what))
        raise errors.InputError(f"{what}: expected a function or a dataset, found {dataset_fn!r:.80}")

    def _begun(self) -> Coordination:
        """Begin at the first call; a task that does not coordinate serves here."""
        begun: Coordination = self.strategy.coordination or self.strategy.coordinate()
        return begun


def _reference(value: Any) -> plain_data.Reference:
    if isinstance(value, closures.PerWorkerValues):
        return plain_data.Reference(value.reference)
    if isinstance(value, RemoteValue):
        raise errors.InputError(
            "schedule: expected plain data as arguments, found the result of another closure; fetch it first"
        )
    return plain_data.refuse(value)
