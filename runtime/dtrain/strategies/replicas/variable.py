"""`Variable`: values that a program assigns, of which every replica of a strategy has a copy.

Copies that are equal share one array, which is never written to while replicas run: an assignment makes a
new one. Only an optimizer writes in place, when all replicas wait for it.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Self

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.errors import InputError
from dtrain.exchange.calls import ReplicaCall
from dtrain.learning.functions.recording import is_recorded
from dtrain.learning.functions.tensors import Source, plain
from dtrain.learning.optimizers.applied import Application
from dtrain.learning.optimizers.optimizer import Optimizer
from dtrain.strategies.replicas import applying, reduction
from dtrain.strategies.replicas.contexts import ReplicaContext, ReplicaGroup, Updating, here
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.strategies.replicas.values import DistributedValues
from dtrain.strategies.shared import VALUE, SharedValues, register_owner
from dtrain.types import Array


class VariableAggregation(Enum):
    """How the values that replicas assign become one; see `tf.VariableAggregation`."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableSynchronization(Enum):
    """When copies become equal; see `tf.VariableSynchronization`. AUTO and NONE are ON_WRITE here."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


def first_value(given: Any, dtype: Any) -> Array:
    """Return an initial value as a new array; of Python numbers float32 or int32."""
    value = given() if callable(given) and not hasattr(given, "__array__") else given
    if value is None:
        raise InputError("Variable: expected an initial value, found None")
    array = np.array(value, dtype, order="C")
    if dtype is None and not hasattr(value, "dtype") and array.dtype in (np.float64, np.int64):
        array = array.astype(np.float32 if array.dtype == np.float64 else np.int32)
    return array


ALONE = Loops(None)
"""The place of variables that are made outside of every scope."""


class Variable(Source):
    """A variable of the strategy in whose scope it is made; see `tf.Variable`.

    In a replica it is that replica's copy. Outside it is what all copies have in common; of one that is
    synchronized when it is read, the sum, the mean or the first of them, as `aggregation` says. It stands for
    an array in arithmetic and in numpy's functions.

    Attributes:
        name: for messages and files.
        shape: fixed.
        dtype: fixed; of Python numbers float32 or int32.
        trainable: whether an optimizer is to change it.
        aggregation: how values that replicas assign become one.
        on_read: whether copies stay apart until they are read outside of the replicas.
        group: the replicas that have a copy.
        home: has the value, where it lies on servers (`strategies.shared`).
        find_state: returns how far an optimizer has come with the variable's model elsewhere, in `fit` or in
            a file; None: it has not, or the variable has no model.
        assigned: is called when a line outside of the replicas has assigned a value; None: nothing is.
        initial_value: an array, a number, or a function that returns one.
        synchronization: how copies are kept; see `dt.distribute.VariableSynchronization`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    trainable: bool
    aggregation: VariableAggregation
    on_read: bool
    group: ReplicaGroup
    home: SharedValues | None
    find_state: Callable[[Optimizer], OptimizerState | None] | None
    assigned: Callable[[Self], None] | None
    constraint: Callable[[Array], Array] | None
    _copies: list[Array]
    _common: Array | None
    _lock: threading.Lock

    def __new__(
        cls,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    ) -> "Variable":
        """Make it; in a replica all replicas make one together, with the first one's value.

        Args:
            initial_value: an array, a number, or a function without arguments that returns one.
            trainable: by default what is not synchronized on reading.
            name: by default ``Variable``.
            dtype: by default that of the value.
            aggregation: see `VariableAggregation`.
            synchronization: see `VariableSynchronization`.

        Raises:
            InputError: there is no initial value.
        """
        on_read = synchronization is VariableSynchronization.ON_READ

        def made(group: ReplicaGroup) -> Variable:
            value = first_value(initial_value, dtype)
            if group.peers is not None:
                call = ReplicaCall.here("Variable", f"{name} {reduction.described(value)}")
                value = np.array(group.peers.exchange(call, [value])[0][0])
            trains = not on_read if trainable is None else trainable
            kind = value, name or "Variable", group, aggregation
            variable = Variable.of(*kind, on_read=on_read, trainable=trains)
            register_owner(variable)
            return variable

        place = here()
        if isinstance(place, ReplicaContext):
            call = ReplicaCall.here("Variable", name or "")
            shared: Variable = place.meet(call, None, lambda of_replicas: made(place.group))
            return shared
        return made(ALONE if place is None else place.strategy.loops)

    @classmethod
    def of(
        cls,
        value: Array,
        name: str,
        group: ReplicaGroup,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        *,
        on_read: bool = False,
        trainable: bool = True,
    ) -> "Variable":
        """Return a variable whose copies share this array, which an optimizer writes to."""
        alone = group.replicas == 1 and group.peers is None
        kind = Variable if alone else SyncOnReadVariable if on_read else MirroredVariable
        self = object.__new__(kind)
        self.name = name
        self.shape = value.shape
        self.dtype = value.dtype
        self.trainable = trainable
        self.aggregation = aggregation
        self.on_read = on_read and not alone
        self.group = group
        self.find_state = None
        self.constraint = None
        self.home = None
        self.assigned = None
        self._copies = [value] * group.replicas
        self._common = value
        self._lock = threading.Lock()
        return self

    # Reading

    @property
    def values(self) -> tuple[Array, ...]:
        """The copies of this process's replicas, which may not be written to."""
        if self.home is not None:
            return (self.read(),)
        return tuple(_read_only(copy) for copy in self._copies)

    def value(self) -> Array:
        """Return the value as the calling line sees it, as a new array."""
        return np.array(self.read())

    def read_value(self) -> Array:
        """Return the value as the calling line sees it, as a new array."""
        return self.value()

    def read(self) -> Array:
        """Return the value as the calling line sees it: a view, which may not be written to.

        Raises:
            InputError: it has copies that differ, and no aggregation that makes one value of them.
        """
        if self.home is not None:
            return _read_only(self.home.read(self))
        index = self._index()
        if index is not None or not self.on_read:
            return _read_only(self._copies[index or 0])
        if self.aggregation is VariableAggregation.NONE:
            raise InputError(
                f"variable {self.name}: expected an aggregation of its copies, which differ from replica to "
                "replica, found VariableAggregation.NONE; read it in a replica"
            )
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return _read_only(self._of_first(self._copies[0], self._call("read of")))
        return np.asarray(self._aggregated(self._copies, self._call("read of")))

    # Writing

    def assign(self, value: Any) -> Self:
        """Take a value; in a replica see `aggregation`."""
        return self._change("assign", value, lambda old, new: new)

    def assign_add(self, delta: Any) -> Self:
        """Add a value; in a replica see `aggregation`."""
        return self._change("assign_add", delta, lambda old, new: np.add(old, new))

    def assign_sub(self, delta: Any) -> Self:
        """Subtract a value; in a replica see `aggregation`."""
        return self._change("assign_sub", delta, lambda old, new: np.subtract(old, new))

    # For optimizers, and for a model

    def common(self) -> Array:
        """Return what all copies have in common, as `read` does outside of the replicas; may be a copy.

        Other tasks are asked only where copies may differ since `set_all`.
        """
        if self._common is not None:
            return self._common
        if self.group.peers is None and all(copy is self._copies[0] for copy in self._copies):
            return self._copies[0]
        return self.read()

    def diverge(self) -> None:
        """Note that copies of other tasks may differ from now on; every task does so at the same line."""
        self._common = None

    def copy_of(self, index: int) -> Array:
        """Return the copy of a replica of this process itself."""
        return self._copies[index]

    def set_copy(self, index: int, value: Array) -> None:
        """Let a replica's copy be this array."""
        self._copies[index] = value

    def set_all(self, value: Array) -> None:
        """Let all copies share this array, as those of all other tasks do."""
        self._copies, self._common = [value] * len(self._copies), value

    def application_of(self, optimizer: Optimizer) -> Application:
        """Return where an optimizer is applied to this variable."""
        return (
            applying.ReplicaApplication.of(optimizer)
            if self.home is None
            else self.home.application_of(optimizer)
        )

    # As an array

    def __getitem__(self, key: Any) -> Any:
        value = plain(self)
        return (value if is_recorded(value) else np.array(value))[key]

    def __len__(self) -> int:
        return self.shape[0]

    def __float__(self) -> float:
        return float(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r} shape={self.shape} dtype={self.dtype} copies={list(self.values)}>"

    __hash__ = object.__hash__

    # Inner parts

    def _index(self) -> int | None:
        """Return whose copy the calling line sees; None: it is outside of all replicas."""
        place = here()
        if isinstance(place, ReplicaContext):
            return place.index if place.group is self.group else 0
        if isinstance(place, Updating):
            return place.index if place.strategy is self.group.strategy else 0
        return None

    def _call(self, what: str) -> ReplicaCall:
        return ReplicaCall.here(what, f"variable {self.name} {self.dtype}{list(self.shape)}")

    def _change(self, kind: str, value: Any, combine: Callable[[Array, Array], Array]) -> Self:
        if self.home is not None:
            new = self._taken(value)
            given = {VALUE: np.negative(new) if kind == "assign_sub" else new}
            self.home.assign(self, given, add=kind != "assign")
            return self
        self._common = None
        place = here()
        index = self._index()
        if (
            isinstance(place, ReplicaContext)
            and place.group is self.group
            and not self.on_read
            and self.aggregation is not VariableAggregation.NONE
        ):
            call = self._call(kind)
            new = self._taken(value)

            def decide(of_replicas: Sequence[Array]) -> None:
                one = self._aggregated(of_replicas, call)
                self._set_each([combine(copy, one) for copy in self._distinct()])

            place.meet(call, new, decide)
        elif index is not None:
            if self.group.one_copy and not self.on_read:
                raise InputError(
                    f"variable {self.name}: {kind} in a replica: expected an aggregation, as all replicas "
                    "share one copy, found VariableAggregation.NONE; make it with another one"
                )
            with self._lock:
                self._copies[index] = self._whole(combine(self._copies[index], self._taken(value)))
        else:
            self._change_outside(kind, value, combine)
            if self.assigned is not None:
                self.assigned(self)
        return self

    def _change_outside(self, kind: str, value: Any, combine: Callable[[Array, Array], Array]) -> None:
        if isinstance(value, DistributedValues):
            given = [self._taken(each) for each in value.values]
            pairs = zip(self._copies, given, strict=True)
            self._copies = [self._whole(combine(copy, each)) for copy, each in pairs]
            return
        new = self._taken(value)
        if self.on_read and self.aggregation is VariableAggregation.NONE:
            raise InputError(
                f"variable {self.name}: {kind}: expected an aggregation of its copies, found "
                "VariableAggregation.NONE; assign it in a replica"
            )
        if self.on_read and self.aggregation is VariableAggregation.SUM:
            if kind != "assign":
                raise InputError(
                    f"variable {self.name}: {kind} outside of the replicas would be counted once a replica; "
                    "assign its whole value, or add to it in a replica"
                )
            new = np.asarray(reduction.divided(new, self.group.num_replicas_in_sync))
        self._set_each([combine(copy, new) for copy in self._distinct()])

    def _aggregated(self, parts: Sequence[Array], call: ReplicaCall) -> Array:
        """Return one value for those of the replicas of this process, and of others."""
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return self._of_first(parts[0], call)
        op = ReduceOp.MEAN if self.aggregation is VariableAggregation.MEAN else ReduceOp.SUM
        return np.asarray(self.group.summed(call, op, [[part] for part in parts])[0]).astype(self.dtype)

    def _of_first(self, value: Array, call: ReplicaCall) -> Array:
        peers = self.group.peers
        return value if peers is None else peers.exchange(call, [value])[0][0]

    def _distinct(self) -> list[Array]:
        """Return the copies: one of them where all share an array."""
        shared = all(copy is self._copies[0] for copy in self._copies)
        return self._copies[:1] if shared else self._copies

    def _set_each(self, values: Sequence[Array]) -> None:
        """Take values for what `_distinct` returned."""
        whole = [self._whole(value) for value in values]
        self._copies = whole * (len(self._copies) if len(whole) == 1 else 1)

    def _taken(self, value: Any) -> Array:
        """Return an assigned value in this variable's dtype, or raise an `InputError` if it does not fit."""
        array = np.asarray(value)
        if array.shape != self.shape:
            raise InputError(f"variable {self.name}: expected shape {self.shape}, found {array.shape}")
        plain = not hasattr(value, "dtype")
        if not plain and array.dtype != self.dtype and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise InputError(f"variable {self.name}: expected dtype {self.dtype}, found {array.dtype}")
        return array.astype(self.dtype)

    def _whole(self, value: Array) -> Array:
        return np.array(value, self.dtype, order="C", ndmin=0)


class MirroredVariable(Variable):
    """A variable whose copies are kept equal when replicas assign it together."""


class SyncOnReadVariable(Variable):
    """A variable whose copies differ until they are read outside of the replicas."""


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
