"""The values of a program's models and variables on its servers; see `strategies.shared`."""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.errors import InputError, NotSupportedError, ProgramError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.metrics.metric import Metric, State
from dtrain.learning.optimizers import Optimizer
from dtrain.learning.optimizers.applied import Application, Iterations, Pairs
from dtrain.messages import Alteration
from dtrain.parameters.placement import Plan
from dtrain.roles.coordinator.access import Access
from dtrain.strategies.coordinator.closures import ProgramNames
from dtrain.strategies.replicas.variable import Variable
from dtrain.strategies.shared import Home, Owner, SharedValues, registered_owners
from dtrain.types import Array
from dtrain.variables import VariableSpec

VALUE = "value"
"""The name of the only variable of a `Variable`."""


class _Place(msgspec.Struct, frozen=True):
    """The variables of one owner in the plan; `number` may be a name, `first` is that of its first one."""

    owner: Owner
    number: int | str
    first: int
    names: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, int]:
        return {name: self.first + index for index, name in enumerate(self.names)}


class ValueOnServers(Home):
    """The home of one variable: `name` of an owner."""

    def __init__(self, values: "ProgramValues", owner: Owner, name: str) -> None:
        self._values = values
        self.owner = owner
        self.name = name

    def read(self, variable: Any) -> Array:
        return self._values.read(self.owner, self.name)

    def change(self, variable: Any, value: Array, *, add: bool) -> None:
        self._values.assign(self.owner, {self.name: value}, add=add)

    def application_of(self, optimizer: Any) -> "ServerApplication":
        return ServerApplication(self._values, optimizer)


class SumsOnServers(threading.local):
    """The sums of one metric."""

    under_way: State | None = None

    def __init__(self, values: "ProgramValues", metric: Metric) -> None:
        self._values = values
        self._metric = metric

    def read(self) -> State:
        return {name: np.array(each) for name, each in self._values.weights(self._metric).items()}

    def add(self, state: State) -> None:
        self._values.assign(self._metric, _as_float64(state), add=True)

    def assign(self, state: State) -> None:
        self._values.assign(self._metric, _as_float64(state))


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
        self._values.apply_to(self._optimizer, [pair for pair in pairs if pair[0] is not None])

    def finalize(self, variables: Sequence[Any]) -> None:
        """Refuse: the averages lie on the servers."""
        raise NotSupportedError(
            "finalize_variable_values: moving averages stay on the parameter servers in a program with a "
            "coordinator; leave use_ema out, or train with fit"
        )


class SharedIterations(Iterations):
    """The updates that an optimizer has made in all workers."""

    def __init__(self, values: "ProgramValues", optimizer: Any) -> None:
        self._values = values
        self._optimizer = optimizer

    def __int__(self) -> int:
        return self._values.iterations(self._optimizer)

    def assign(self, count: Any) -> "SharedIterations":
        """Refuse: servers count."""
        raise NotSupportedError(
            "iterations are counted by the parameter servers in a program with a coordinator, and cannot "
            "be set"
        )


class ProgramValues(SharedValues):
    """Every variable of a program, by its owner."""

    def __init__(self, names: ProgramNames) -> None:
        """Take the built models, the variables, and the metrics named at module level, made so far.

        Raises:
            ProgramError: two models share layers.
        """
        self._places: dict[int, _Place] = {}
        self.specs: list[VariableSpec] = []
        metrics = {id(metric): (f"{module}.{name}", metric) for module, name, metric in names.objects(Metric)}
        owners: list[tuple[int | str, Owner]] = [*registered_owners(), *metrics.values()]
        for number, owner in owners:
            specs = _specs_of(owner)
            if specs is None:
                continue
            _refuse_shared_layers(owner)
            self._places[id(owner)] = _Place(
                owner, number, len(self.specs), tuple(spec.name for spec in specs)
            )
            self.specs += [
                replace(spec, name=f"{number}:{owner.name}/{spec.name}", sparse=False) for spec in specs
            ]
        self._access: Callable[[], Access] = _without_access
        self._as_of: Callable[[], Hashable | None] = lambda: None
        self._known: dict[tuple[int, int], tuple[Hashable, dict[str, Array]]] = {}
        self._counted: dict[int, Hashable] = {}
        self._optimizers: dict[int, tuple[Any, str]] = {}
        for place in self._places.values():
            if (optimizer := getattr(place.owner, "optimizer", None)) is not None:
                self._optimizers[id(optimizer)] = optimizer, f"{place.number}:optimizer"
        for module, name, optimizer in names.objects(Optimizer):
            self._optimizers.setdefault(id(optimizer), (optimizer, f"{module}.{name}"))

    def first_values(self) -> dict[str, Array]:
        """Return the values that they have in this process, by the names in `specs`."""
        result: dict[str, Array] = {}
        for place in self._places.values():
            owner = place.owner
            values = _values_of(owner)
            for name, number in place.numbers.items():
                result[self.specs[number].name] = np.asarray(values[name])
        return result

    def use(self, access: Callable[[], Access], as_of: Callable[[], Hashable | None]) -> None:
        """Read and write through the calling thread's access from now on.

        `as_of` stays equal as long as nothing can have changed; None: that is not known.
        """
        self._access = access
        self._as_of = as_of
        self._known.clear()
        self._counted.clear()
        for place in self._places.values():
            owner = place.owner
            if isinstance(owner, Metric):
                owner.shared = SumsOnServers(self, owner)
                continue
            by_name = {VALUE: owner} if isinstance(owner, Variable) else owner.in_replicas().by_name
            for name, variable in by_name.items():
                variable.home = ValueOnServers(self, owner, name)
        for optimizer, _ in self._optimizers.values():
            optimizer.__dict__["_iterations"] = SharedIterations(self, optimizer)

    def check(self, plan: Plan) -> None:
        """Raise a `ProgramError` that names the first variable that differs from the coordinator's."""
        theirs = [(each.name, each.shape, each.dtype) for each in plan.variables]
        ours = [(each.name, each.shape, each.dtype) for each in self.specs]
        if theirs == ours:
            return
        for mine, other in zip([*ours, None], [*theirs, None], strict=False):
            if mine != other:
                break
        raise ProgramError(
            "the program of this task has made other models, variables or metrics than the coordinator's "
            f"before its first call of the coordinator: {mine or 'nothing more'} here, "
            f"{other or 'nothing more'} there; "
            "make all of them in every task, in one order, and build models before (give them an Input)"
        )

    def holds(self, owner: Owner) -> bool:
        return self._access is not _without_access and id(owner) in self._places

    def weights(self, owner: Owner) -> dict[str, Array]:
        access = self._access()
        place = self._places[id(owner)]
        as_of = self._as_of()
        known = self._known.get((id(access), id(owner)))
        if known is not None and as_of is not None and known[0] == as_of:
            return known[1]
        values = dict(zip(place.names, access.read(list(place.numbers.values())), strict=True))
        if as_of is not None:
            self._known[id(access), id(owner)] = as_of, values
        return values

    def assign(self, owner: Owner, values: Mapping[str, Array], *, add: bool = False) -> dict[str, Array]:
        numbers = self._places[id(owner)].numbers
        kind = Alteration.ADD if add else Alteration.ASSIGN
        new = self._access().alter(kind, {numbers[name]: value for name, value in values.items()})
        self._known.clear()
        return dict(zip(values, new, strict=True))

    def read(self, owner: Owner, name: str) -> Array:
        return self._access().read([self._places[id(owner)].numbers[name]])[0]

    def apply_to(self, optimizer: Any, pairs: Pairs) -> None:
        """Let an optimizer update variables once; each pair is a gradient and a variable."""
        gradients: list[tuple[Owner, str, Any]] = []
        for gradient, variable in pairs:
            home = variable.home
            if not isinstance(home, ValueOnServers):
                raise InputError(
                    f"{variable.name}: its value is not on the servers, because it was made after the "
                    "program first called its coordinator; make it before"
                )
            gradients.append((home.owner, home.name, gradient))
        self.apply_gradients(optimizer, gradients)

    def apply_gradients(self, optimizer: Any, gradients: Sequence[tuple[Owner, str, Any]]) -> None:
        given: dict[str, Any] = {}
        for owner, name, gradient in gradients:
            place = self._places.get(id(owner))
            if place is None:
                raise InputError(
                    f"{owner.name}: its values are not on the servers, because it was made or built after "
                    "the program first called its coordinator; make and build it before"
                )
            given[str(place.numbers[name])] = gradient
        if len(given) < len(gradients):
            raise InputError("apply_gradients: expected each variable once")
        clipped = optimizer.clip(given)
        values = {int(number): self._whole(int(number), each) for number, each in clipped.items()}
        access = self._access()
        access.alter(Alteration.GRADIENT, values, self._key(optimizer), optimizers.serialize(optimizer))
        self._known.clear()
        self._counted[id(access)] = self._as_of()

    def _whole(self, number: int, gradient: Any) -> Array:
        spec = self.specs[number]
        given = gradient.dense(spec.shape) if isinstance(gradient, SparseRows) else np.asarray(gradient)
        try:
            return np.broadcast_to(given, spec.shape).astype(spec.dtype)
        except ValueError:
            raise InputError(
                f"{spec.name}: expected a gradient of shape {spec.shape}, found {given.shape}"
            ) from None

    def iterations(self, optimizer: Any) -> int:
        access = self._access()
        as_of = self._as_of()
        if as_of is None or self._counted.get(id(access)) != as_of:
            access.read(())
            self._counted[id(access)] = as_of
        return access.iterations.get(self._key(optimizer), 0)

    def _key(self, optimizer: Any) -> str:
        """Return the name of an optimizer, which is the same in all tasks."""
        if id(optimizer) not in self._optimizers:
            raise InputError(
                f"{optimizer.name}: in a program with a coordinator an optimizer is that of a compiled "
                "model, or has a name at module level where the program first calls its coordinator"
            )
        return self._optimizers[id(optimizer)][1]


def _specs_of(owner: Owner) -> Sequence[VariableSpec] | None:
    if isinstance(owner, Variable):
        return [VariableSpec(VALUE, owner.shape, owner.dtype.name, owner.trainable)]
    if isinstance(owner, Metric):
        return [VariableSpec(name, np.shape(each), "float64", False) for name, each in owner.state.items()]
    return owner.created_variables if owner.built else None


def _values_of(owner: Owner) -> Mapping[str, Array]:
    if isinstance(owner, Variable):
        return {VALUE: owner.read()}
    return owner.state if isinstance(owner, Metric) else owner.arrays


def _as_float64(state: State) -> State:
    return {name: np.asarray(each, np.float64) for name, each in state.items()}


def _refuse_shared_layers(owner: Owner) -> None:
    if isinstance(owner, Variable | Metric):
        return
    others = {user for layer in owner.network.layers for user in layer.used_by if user is not owner}
    if others:
        names = ", ".join(sorted({each.name for each in others}))
        raise ProgramError(
            f"{owner.name} shares layers with {names}: in a program with a coordinator each model has its "
            "own variables on the servers; make one model of them"
        )


def _without_access() -> Access:
    raise AssertionError("the servers are reached before values are read")
