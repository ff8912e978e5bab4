"""Everything that a strategy offers to loops of one's own, from outside of the replicas."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dtrain.errors import ContextError, InputError
from dtrain.exchange.calls import ReplicaCall
from dtrain.learning.metrics.metric import CallingReplica, State, ask_for_replica
from dtrain.strategies.replicas import reduction
from dtrain.strategies.replicas.calls import ReplicaPool, ThreadMeeting
from dtrain.strategies.replicas.contexts import ReplicaContext, ReplicaGroup, entered, here
from dtrain.strategies.replicas.reduction import Leaf, ReduceOp
from dtrain.strategies.replicas.values import (
    DistributedValues,
    ValueContext,
    is_leaf,
    mapped,
    of_replica,
    regrouped,
)


def _replica_here() -> CallingReplica | None:
    """Return the replica of the calling line, for metrics."""
    place = here()
    if not isinstance(place, ReplicaContext):
        return None
    group = place.group

    def total(name: str, state: State) -> State:
        call = ReplicaCall.here("result", f"metric {name}")
        sums = group.summed(call, ReduceOp.SUM, [[np.asarray(each) for each in state.values()]])
        return {key: np.asarray(each) for key, each in zip(state, sums, strict=True)}

    return CallingReplica(place.replica_id_in_sync_group, None if group.peers is None else total)


ask_for_replica(_replica_here)


class Loops(ReplicaGroup):
    """The replicas that train together, as a program sees them from outside: `run`, `reduce`, `gather`."""

    @cached_property
    def _pool(self) -> ReplicaPool:
        return ReplicaPool(self.replicas)

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.check_outside("run")
        if not callable(fn):
            raise InputError(f"run: expected a function, found {fn!r}")
        if not isinstance(args, list | tuple):
            raise InputError(f"run: expected a list or tuple as args, found {type(args).__name__}")
        given = tuple(args), dict(kwargs or {})
        meeting = ThreadMeeting([self.first + index for index in range(self.replicas)])
        results: list[Any] = [None] * self.replicas

        def part(index: int) -> Callable[[], None]:
            def run() -> None:
                context = ReplicaContext(self, index, meeting)
                try:
                    own_args, own_kwargs = of_replica(given, index)
                    with entered(context):
                        results[index] = fn(*own_args, **own_kwargs)
                except BaseException as error:
                    meeting.ended(self.first + index, error)
                    if self.replicas == 1:
                        raise
                else:
                    meeting.ended(self.first + index)

            return run

        self._report()
        try:
            if self.replicas == 1:
                part(0)()
                return results[0]
            self._pool.run([part(index) for index in range(self.replicas)], meeting)
            return regrouped(results)
        finally:
            self._report()

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any) -> Any:
        self.check_outside("reduce")
        op = reduction.as_op(reduce_op, "reduce")
        if axis is None:
            return mapped(lambda leaf: self._reduced(op, leaf), mapped(_unfolded, value))
        if not is_leaf(value):
            raise InputError(
                "reduce: expected one value where an axis is given, found a nest; reduce its parts one by one"
            )
        return self._reduced_over(op, value, reduction.as_axes(axis, "reduce"))

    def gather(self, value: Any, axis: Any) -> Any:
        self.check_outside("gather")
        axis = reduction.as_axis(axis, "gather")
        return mapped(lambda leaf: self._gathered(leaf, axis), value)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        if is_leaf(value):
            return value.values if isinstance(value, DistributedValues) else (value,)
        return tuple(of_replica(value, index) for index in range(self.replicas))

    def values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        if not callable(value_fn):
            raise InputError(
                "experimental_distribute_values_from_function: expected a function of a ValueContext, found "
                f"{value_fn!r}"
            )
        total = self.num_replicas_in_sync
        made = [value_fn(ValueContext(self.first + index, total)) for index in range(self.replicas)]
        return regrouped(made, always=True)

    def check_outside(self, what: str) -> None:
        """Raise a `ContextError` in a replica, a `ProgramError` where the program's functions cannot run."""
        self.check(what)
        if isinstance(here(), ReplicaContext):
            raise ContextError(
                f"{what}: expected to be outside of all replicas, found a function of strategy.run; use "
                "dt.distribute.get_replica_context().merge_call, all_reduce or all_gather there"
            )

    # Inner parts

    def _report(self) -> None:
        if self.strategy is not None:
            self.strategy.in_loop(self.updates)

    def _parts(self, value: Any, what: str) -> list[Leaf]:
        """Return the summands of this process's replicas."""
        given = value.values if isinstance(value, DistributedValues) else [value]
        return [reduction.as_summand(each, what) for each in given]

    def _reduced(self, op: ReduceOp, value: Any) -> Any:
        """Return one leaf reduced over replicas, without an axis."""
        if not isinstance(value, DistributedValues):
            if self.num_replicas_in_sync == 1 or (op is ReduceOp.MEAN and self.peers is None):
                return value
            if value is None or isinstance(value, str | bytes):
                raise InputError(
                    f"reduce: expected a number or an array of each replica, found {value!r}; does the "
                    "function that strategy.run ran return one?"
                )
            if self.replicas > 1:
                raise InputError(
                    f"reduce: expected values of {self.replicas} replicas, found {value!r}, which is the "
                    "same in all of them; multiply it, or use ReduceOp.MEAN"
                )
        parts = self._parts(value, "reduce")
        found = {reduction.described(part): None for part in parts}
        if len(found) > 1:
            raise InputError(
                f"reduce: expected one dtype and shape in all replicas, found {', '.join(found)}; give the "
                "axis along which they differ"
            )
        call = ReplicaCall.here("reduce", f"{op.name} of {', '.join(found)}")
        return _number(self.summed(call, op, [[part] for part in parts])[0])

    def _reduced_over(self, op: ReduceOp, value: Any, axes: tuple[int, ...]) -> Any:
        """Return one leaf reduced over axes and replicas; a mean divides by the real count of elements."""
        if not isinstance(value, DistributedValues) and self.replicas > 1:
            value = DistributedValues([value] * self.replicas)
        arrays = [np.asarray(part) for part in self._parts(value, "reduce")]
        found = [reduction.sum_and_count(array, axes, "reduce") for array in arrays]
        shapes = {reduction.described(each): None for each, _ in found}
        if len(shapes) > 1:
            raise InputError(
                f"reduce: expected equal lengths of the axes that stay, found {', '.join(shapes)} after the "
                f"sum over axis {axes}"
            )
        call = ReplicaCall.here("reduce", f"{op.name} over axis {axes} of {', '.join(shapes)}")
        counted: list[list[Leaf]] = [[each, np.asarray(count, np.int64)] for each, count in found]
        sums, count = self.summed(call, ReduceOp.SUM, counted)
        return _number(reduction.divided(sums, count) if op is ReduceOp.MEAN else sums)

    def _gathered(self, value: Any, axis: int) -> Any:
        if not isinstance(value, DistributedValues) and self.peers is None:
            return value
        given = value.values if isinstance(value, DistributedValues) else [value]
        if not all(isinstance(each, np.ndarray | np.generic) for each in given):
            raise InputError(f"gather: expected arrays, found {given!r}")
        arrays = [np.asarray(each) for each in given]
        for array in arrays:
            if not -array.ndim <= axis < array.ndim:
                raise InputError(
                    f"gather: expected arrays with axis {axis}, found {reduction.described(array)}"
                )
        what = f"{reduction.described_but(arrays[0], axis)} along axis {axis}"
        return self.gathered(ReplicaCall.here("gather", what), axis, [[array] for array in arrays])[0]


def _unfolded(value: Any) -> Any:
    """Return distributed nests as a nest of distributed values."""
    nested = isinstance(value, DistributedValues) and not is_leaf(value.values[0])
    return regrouped(value.values) if nested else value


def _number(value: Leaf) -> Any:
    """Return a single number as one, and everything else as it is."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
