"""`ReplicaContext`: the program's line to the other replicas, from within a function of `Strategy.run`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.strategies.reduction import ReduceOp
from dtrain.strategies.replicas import reducing
from dtrain.strategies.replicas.calls import Call, call_site
from dtrain.strategies.replicas.contexts import CrossReplica, entered
from dtrain.strategies.replicas.group import Group
from dtrain.strategies.replicas.meeting import Meeting
from dtrain.strategies.replicas.nests import form, leaves, mapped, of_replica, regrouped
from dtrain.strategies.replicas.options import CommunicationOptions


class ReplicaContext:
    """One replica, within a function that `Strategy.run` runs in it; see `tf.distribute.ReplicaContext`.

    Attributes:
        group: the replicas of this process and of others.
        index: the number of this replica in its process.
        meeting: where the replicas of this process call each other.
        strategy: the strategy whose replica it is.
    """

    def __init__(self, group: Group, index: int, meeting: Meeting, strategy: Any = None) -> None:
        self.group = group
        self.index = index
        self._meeting = meeting
        self._strategy = strategy

    @property
    def strategy(self) -> Any:
        """The strategy whose replica this is."""
        return self.group.strategy if self._strategy is None else self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are, in all processes."""
        return self.group.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of this replica among all."""
        return self.group.first + self.index

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of the device of this replica."""
        return (self.group.devices[self.index],)

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Return the sum or the mean of what all replicas give, to each of them.

        Args:
            reduce_op: the same in all replicas.
            value: an array or a number, or a nest of them, of one form, dtypes and shapes in all replicas;
                `SparseRows` come back joined. The mean of whole numbers is float64, of those of 8 and 16 bits
                float32.
            options: of this call.

        Returns: Arrays that may not be written to.

        Raises:
            CallsDifferError: the replicas make different calls; it is raised in all of them.
            InputError: a value is no array of numbers.
        """
        op = reducing.as_op(reduce_op, "all_reduce")
        parts = [reducing.as_summand(leaf, "all_reduce") for leaf in leaves(value)]
        if not parts:
            raise InputError(f"all_reduce: expected at least one array, found {value!r}")
        reducing.check_one_place(leaves(value), parts, "all_reduce")
        what = f"{op.name} of {form(value)} {', '.join(map(reducing.described, parts))}"
        call = Call("all_reduce", what, call_site())

        def decide(of_replicas: Sequence[Any]) -> Sequence[Any]:
            return [self.group.summed(call, op, of_replicas)] * len(of_replicas)

        found = iter(self._meet(call, parts, decide, options))
        return mapped(lambda leaf: _own_view(next(found), leaf), value)

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Return the arrays of all replicas joined along an axis, to each of them.

        Args:
            value: an array, or a nest of them; lengths may differ along the axis. Python numbers come back
                as they are.
            axis: of arrays that have at least one; negative ones count from the end.
            options: of this call.

        Raises:
            CallsDifferError: the replicas make different calls; it is raised in all of them.
            InputError: arrays have no such axis.
        """
        axis = reducing.as_axis(axis, "all_gather")
        given = [leaf for leaf in leaves(value) if not _is_python_number(leaf)]
        if any(isinstance(leaf, SparseRows) for leaf in given):
            raise InputError("all_gather: expected arrays, found SparseRows; make them dense first")
        parts = [np.asarray(reducing.as_leaf(leaf, "all_gather")) for leaf in given]
        for part in parts:
            if not -part.ndim <= axis < part.ndim:
                raise InputError(
                    f"all_gather: expected an array with axis {axis}, found {reducing.described(part)}"
                )
        what = f"{form(value)} {', '.join(reducing.described_but(part, axis) for part in parts)}, axis {axis}"
        call = Call("all_gather", what, call_site())

        def decide(of_replicas: Sequence[Any]) -> Sequence[Any]:
            return [self.group.gathered(call, axis, of_replicas)] * len(of_replicas)

        found = iter(self._meet(call, parts, decide, options))
        return mapped(lambda leaf: leaf if _is_python_number(leaf) else _own_view(next(found), leaf), value)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function once for all replicas of this process, outside of them, and return its result.

        Args:
            merge_fn: ``(strategy, *args, **kwargs) -> result``; that of the first replica counts. Its
                arguments are `PerReplica` where those of the replicas differ.
            args: of this replica.
            kwargs: of this replica.

        Returns: The result, of distributed values this replica's.

        Raises:
            CallsDifferError: another replica makes another call; it is raised in all of them.
        """
        call = Call("merge_call", "", call_site())

        def decide(of_replicas: Sequence[Any]) -> Sequence[Any]:
            merged_args, merged_kwargs = regrouped(of_replicas)
            with entered(CrossReplica(self.strategy)):
                result = merge_fn(self.strategy, *merged_args, **merged_kwargs)
            return [of_replica(result, index) for index in range(len(of_replicas))]

        return self._meet(call, (tuple(args), dict(kwargs or {})), decide)

    def meet(self, call: Call, value: Any, decide: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
        """Hand in a value to the other replicas of this process; see `Meeting.call`."""
        return self._meet(call, value, decide)

    def _meet(
        self,
        call: Call,
        value: Any,
        decide: Callable[[Sequence[Any]], Sequence[Any]],
        options: CommunicationOptions | None = None,
    ) -> Any:
        if options is not None and not isinstance(options, CommunicationOptions):
            raise InputError(f"{call.kind}: options: expected CommunicationOptions, found {options!r}")
        timeout_s = None if options is None else options.timeout_seconds
        return self._meeting.call(self.replica_id_in_sync_group, call, value, decide, timeout_s)


def _is_python_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex) and not hasattr(leaf, "dtype")


def _own_view(result: Any, leaf: Any) -> Any:
    """Return a view of a common result that belongs to one replica; a number where a number was given."""
    if isinstance(result, SparseRows):
        return SparseRows(_own_view(result.ids, None), _own_view(result.rows, None))
    if result.ndim == 0 and not isinstance(leaf, np.ndarray):
        return result[()]
    view = result.view()
    view.flags.writeable = False
    return view
