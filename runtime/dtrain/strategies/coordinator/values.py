"""The variables of a program's models, metrics and optimizers, whose values lie on its servers."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain.cluster import Role
from dtrain.errors import InputError, NotSupportedError, PeerLostError, PeerRefusedError, ProgramError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.metrics.metric import Metric, State
from dtrain.learning.optimizers import Optimizer
from dtrain.learning.optimizers.applied import Application, Iterations, Pairs
from dtrain.messages import AnyMessage, Operate, Operated, Operation, Refusal, RefusalKind, Share
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.coordinator.closures import ProgramNames
from dtrain.strategies.replicas.variable import Variable
from dtrain.strategies.shared import VALUE, Owner, SharedValues, registered_owners
from dtrain.types import Array, Blocks
from dtrain.variables import VariableSpec
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import Frame
from dtrain.wire.peer import Peer

Asked = tuple[int, Share | Operate, Blocks]
"""For the server of this number."""
Ask = Callable[[Sequence[Asked]], Sequence[tuple[AnyMessage, Blocks]]]
"""Asks servers, all at once; each may be asked one thing."""


class Servers:
    """Connections to all servers, for one question at a time."""

    def __init__(self, task: ClusterTask, connect: ConnectTask) -> None:
        """Connect a task to every server; raise a WaitTimeoutError if one does not come in time."""
        self._reporter = task.reporter
        self._patience_s = patience_s = task.assignment.spec.wait.server_s
        servers = task.assignment.cluster.tasks(Role.PS)
        self._peers = [Peer(str(each), partial(connect, each), patience_s=patience_s) for each in servers]
        for peer in self._peers:
            self._reporter.waiting(peer.name)
            peer.open(task.assignment.connect_s)
        self._reporter.waiting(None)

    def ask(self, questions: Sequence[Asked]) -> list[tuple[AnyMessage, Blocks]]:
        """Ask servers, and wait for all answers, whose blocks stay as they are until the next question.

        Raises:
            PeerLostError: a server is gone for good.
            WaitTimeoutError: a server that is there does not answer in time.
        """
        for server, message, blocks in questions:
            self._peers[server].send(message, blocks)
        deadline_s = SYSTEM.now() + self._patience_s
        frames: list[Frame] = []
        for server, _, _ in questions:
            self._reporter.waiting(self._peers[server].name)
            frames.append(self._peers[server].receive(deadline=deadline_s))
        self._reporter.waiting(None)
        return [(frame.message, frame.blocks) for frame in frames]

    def abort(self, reason: str) -> None:
        """From any thread: end every wait with an error, also later ones."""
        for peer in self._peers:
            peer.abort(reason)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


class VariableClient:
    """The variables of one session, as one task reads and changes them; threads take turns.

    Attributes:
        closure: whose changes are made; 0: those of the coordinator itself, or of a program alone.
        iterations: by the optimizers' keys, how many updates ps:0 told of last within this closure.
    """

    def __init__(self, ask: Ask, plan: Plan, session: int) -> None:
        self._ask = ask
        self._plan = plan
        self._session = session
        self._lock = threading.Lock()
        self.within(0, 1)

    def within(self, closure: int, settled: int) -> None:
        """Make the changes of a closure from now on, none of which has been made in this attempt.

        Every closure below `settled` has ended.
        """
        self.closure = closure
        self._within: dict[str, Any] = {"session": self._session, "closure": closure, "settled": settled}
        self._made = [0] * self._plan.servers
        self._known: dict[tuple[int, ...], list[Array]] = {}
        self.iterations: dict[str, int] = {}

    def share(self, values: Sequence[Array]) -> None:
        """Give the servers the first values of all variables, in the plan's order."""
        message = Share(session=self._session, plan=self._plan.to_dict())
        by_server = enumerate(self._shards(range(len(values))))
        asked = [(server, message, [self._part(values, each) for each in own]) for server, own in by_server]
        for answer, _ in self._ask(asked):
            _operated(answer)

    def read(self, variables: Iterable[int]) -> list[Array]:
        """Return the newest values of variables, by their numbers in the plan; the caller owns the arrays."""
        return self.operate(Operation.READ, dict.fromkeys(variables))

    def read_once(self, variables: Iterable[int]) -> list[Array]:
        """Return values as `read`; within a closure those that were read before, until its next change."""
        numbers = tuple(variables)
        found = self._known.get(numbers) or self.read(numbers)
        if self.closure:
            self._known[numbers] = found
        return found

    def operate(self, kind: Operation, values: Mapping[int, Any], **rule: Any) -> list[Array]:
        """Read variables, or change them once; return their values, but not after gradients.

        Args:
            values: for each variable that is changed a gradient, value or summand, of its shape and dtype.
            rule: for gradients: the key of an `optimizer`, and its `config` as data.

        Raises:
            PeerLostError: a server was started again and has no variables.
            PeerRefusedError: a server refuses what it is asked.
        """
        reads, everywhere = kind is Operation.READ, kind is Operation.GRADIENT
        told = Operate(**self._within, kind=kind, shards=(), **rule)
        with self._lock:
            asked: list[tuple[int, Operate, Blocks]] = [
                (
                    server,
                    replace(told, number=self._made[server], shards=tuple(own)),
                    [] if reads else [self._part(values, each) for each in own],
                )
                for server, own in enumerate(self._shards(values))
                if own or everywhere or (reads and server == 0)  # all count updates, and ps:0 tells of them
            ]
            flat: dict[int, Array] = {}
            for (server, message, _), (answer, blocks) in zip(asked, self._ask(asked), strict=True):
                iterations = _operated(answer).iterations
                self.iterations = iterations if server == 0 else self.iterations
                self._made[server] += not reads
                flat.update(zip(message.shards, blocks, strict=not everywhere))
            if not reads:
                self._known.clear()
            pieces: defaultdict[int, list[Array]] = defaultdict(list)
            for number in sorted(flat):
                pieces[self._plan.shards[number].variable].append(flat[number])
            variables = () if everywhere else ((each, self._plan.variables[each].shape) for each in values)
            return [np.concatenate(pieces[each]).reshape(shape) for each, shape in variables]

    def updates(self, optimizer: str) -> int:
        """Return how many updates an optimizer of this key has made in all tasks."""
        if not (self.closure and self.iterations):
            self.read(())
        return self.iterations.get(optimizer, 0)

    def _part(self, values: Any, number: int) -> Array:
        shard = self._plan.shards[number]
        value = values[shard.variable]
        rows = value[shard.row_start : shard.row_stop] if value.ndim else value
        return np.ascontiguousarray(rows).reshape(-1)

    def _shards(self, variables: Iterable[int]) -> list[list[int]]:
        wanted = set(variables)
        result: list[list[int]] = [[] for _ in range(self._plan.servers)]
        for number, shard in enumerate(self._plan.shards):
            if shard.variable in wanted:
                result[shard.server].append(number)
        return result


def _operated(answer: AnyMessage) -> Operated:
    if isinstance(answer, Operated):
        return answer
    lost = isinstance(answer, Refusal) and answer.kind is RefusalKind.LOST
    reason = answer.reason if isinstance(answer, Refusal) else f"a server answered {type(answer).__name__}"
    raise (PeerLostError if lost else PeerRefusedError)(reason)


class SumsOnServers(threading.local):
    """The sums of one metric."""

    under_way: State | None = None

    def __init__(self, values: "ProgramValues", metric: Metric) -> None:
        self._weights = partial(values.weights, metric)
        self.assign = partial(values.assign, metric)
        self.add = partial(values.assign, metric, add=True)

    def read(self) -> State:
        return {name: np.array(each) for name, each in self._weights().items()}


class ServerApplication(Application):
    """One optimizer, whose slots lie on the servers: each worker sends its gradients there."""

    def __init__(self, values: "ProgramValues", optimizer: Any) -> None:
        self._values = values
        self._optimizer = optimizer

    def build(self, variables: Sequence[Any]) -> None:
        """Do nothing: slots are made at the first update of each variable."""

    def aggregated(self, pairs: Pairs) -> Pairs:
        """Return the pairs: a closure is the only replica."""
        return pairs

    def apply(self, pairs: Pairs, *, aggregates: bool) -> None:
        self._values.update(self._optimizer, [pair for pair in pairs if pair[0] is not None])

    def finalize(self, variables: Sequence[Any]) -> None:
        """Refuse: the averages lie on the servers."""
        raise NotSupportedError(
            "finalize_variable_values: moving averages stay on the parameter servers in a program with a "
            "coordinator; leave use_ema out, or train with fit"
        )


class SharedIterations(Iterations):
    """The updates that an optimizer has made in all workers."""

    def assign(self, count: Any) -> "SharedIterations":
        """Refuse: servers count."""
        raise NotSupportedError(
            "iterations are counted by the parameter servers in a program with a coordinator, and cannot "
            "be set"
        )


class ProgramValues(SharedValues):
    """Every variable of a program, by its owner.

    Attributes:
        names: of the program.
        specs: of all variables, in the plan's order.
        client: reads and changes them.
    """

    client: VariableClient

    def __init__(self, names: ProgramNames) -> None:
        """Take the built models, the variables, and the metrics named at module level, made so far.

        Raises:
            ProgramError: two models share layers.
        """
        self.names = names
        self.specs: list[VariableSpec] = []
        self._places: dict[int, tuple[Owner, dict[str, int]]] = {}
        self._optimizers: dict[int, tuple[Any, str]] = {}
        metrics = {id(metric): (f"{module}.{name}", metric) for module, name, metric in names.objects(Metric)}
        owners: list[tuple[int | str, Owner]] = [*registered_owners(), *metrics.values()]
        for number, owner in owners:
            if not (specs := _specs_of(owner)):
                continue
            first, whose = len(self.specs), f"{number}:{owner.name}"
            self._places[id(owner)] = owner, {each.name: i for i, each in enumerate(specs, first)}
            self.specs += [replace(each, name=f"{whose}/{each.name}", sparse=False) for each in specs]
            if (optimizer := getattr(owner, "optimizer", None)) is not None:
                self._optimizers[id(optimizer)] = optimizer, f"{number}:optimizer"
        for module, name, optimizer in names.objects(Optimizer):
            self._optimizers.setdefault(id(optimizer), (optimizer, f"{module}.{name}"))

    def first_values(self) -> list[Array]:
        """Return the values that they have in this process."""
        places = self._places.values()
        return [np.asarray(_values_of(owner)[name]) for owner, numbers in places for name in numbers]

    def use(self, client: VariableClient) -> None:
        """Read and write through a client from now on."""
        self.client = client
        for owner, numbers in list(self._places.values()):
            if isinstance(owner, Metric):
                owner.shared = SumsOnServers(self, owner)
                continue
            own = {VALUE: owner} if isinstance(owner, Variable) else owner.in_replicas().by_name
            for name, variable in own.items():
                variable.home = self
                self._places[id(variable)] = variable, {VALUE: numbers[name]}
        for optimizer, key in self._optimizers.values():
            optimizer.__dict__["_iterations"] = iterations = SharedIterations()
            iterations.follow(partial(client.updates, key))

    def check(self, plan: Plan) -> None:
        """Raise a `ProgramError` that names the first variable that differs from the coordinator's."""
        both = [[(v.name, v.shape, v.dtype) for v in specs] for specs in (self.specs, plan.variables)]
        for mine, other in zip_longest(*both, fillvalue="nothing more"):
            if mine != other:
                raise ProgramError(
                    "the program of this task has made other models, variables or metrics than the "
                    f"coordinator's before its first call of the coordinator: {mine} here, {other} there; "
                    "make all of them in every task, in one order, and build models before (give them an "
                    "Input)"
                )

    def holds(self, owner: Owner) -> bool:
        return hasattr(self, "client") and id(owner) in self._places

    def read(self, variable: Variable) -> Array:
        return self.client.read(self._numbers(variable).values())[0]

    def weights(self, owner: Owner) -> dict[str, Array]:
        numbers = self._numbers(owner)
        return dict(zip(numbers, self.client.read_once(numbers.values()), strict=True))

    def assign(self, owner: Owner, values: Mapping[str, Any], *, add: bool = False) -> None:
        given = {self._numbers(owner)[name]: each for name, each in values.items()}
        given = {number: np.asarray(each, self.specs[number].dtype) for number, each in given.items()}
        self.client.operate(Operation.ADD if add else Operation.ASSIGN, given)

    def update(self, optimizer: Any, pairs: Pairs) -> None:
        """Let an optimizer update variables once; each pair is a gradient and a variable."""
        given = {str(self._numbers(variable)[VALUE]): gradient for gradient, variable in pairs}
        if len(given) < len(pairs):
            raise InputError("apply_gradients: expected each variable once")
        if id(optimizer) not in self._optimizers:
            raise InputError(
                f"{optimizer.name}: in a program with a coordinator an optimizer is that of a compiled "
                "model, or has a name at module level where the program first calls its coordinator"
            )
        clipped = {int(number): each for number, each in optimizer.clip(given).items()}
        values = {number: _whole(self.specs[number], each) for number, each in clipped.items()}
        key, config = self._optimizers[id(optimizer)][1], optimizers.serialize(optimizer)
        self.client.operate(Operation.GRADIENT, values, optimizer=key, config=config)

    def application_of(self, optimizer: Any) -> "ServerApplication":
        return ServerApplication(self, optimizer)

    def _numbers(self, owner: Owner) -> dict[str, int]:
        if id(owner) not in self._places:
            raise InputError(
                f"{owner.name}: its values are not on the servers, because it was made or built after the "
                "program first called its coordinator; make and build it before"
            )
        return self._places[id(owner)][1]


def _whole(spec: VariableSpec, gradient: Any) -> Array:
    given = gradient.dense(spec.shape) if isinstance(gradient, SparseRows) else np.asarray(gradient)
    try:
        whole = given if given.shape == spec.shape else np.broadcast_to(given, spec.shape)
        return whole.astype(spec.dtype, copy=False)
    except ValueError:
        raise InputError(
            f"{spec.name}: expected a gradient of shape {spec.shape}, found {given.shape}"
        ) from None


def _specs_of(owner: Owner) -> Sequence[VariableSpec]:
    if isinstance(owner, Variable):
        return [VariableSpec(VALUE, owner.shape, owner.dtype.name, owner.trainable)]
    if isinstance(owner, Metric):
        return [VariableSpec(name, np.shape(each), "float64", False) for name, each in owner.state.items()]
    if not owner.built:
        return []
    if others := {user for layer in owner.network.layers for user in layer.used_by if user is not owner}:
        names = ", ".join(sorted({each.name for each in others}))
        raise ProgramError(
            f"{owner.name} shares layers with {names}: in a program with a coordinator each model has its "
            "own variables on the servers; make one model of them"
        )
    specs: Sequence[VariableSpec] = owner.created_variables
    return specs


def _values_of(owner: Owner) -> Mapping[str, Any]:
    if isinstance(owner, Variable):
        return {VALUE: owner.read()}
    return owner.state if isinstance(owner, Metric) else owner.arrays
