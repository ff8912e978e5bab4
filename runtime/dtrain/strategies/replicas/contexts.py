"""Places of a program's lines: in a replica, as `ReplicaContext` tells, or in cross-replica context.

A thread of a replica is in that replica, and reaches the others by its group. Everything else is outside of
all replicas where a strategy's `scope` is open, and else in the only replica of the default strategy. See
`tf.distribute`.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dtrain.errors import ContextError, InputError, ProgramError
from dtrain.exchange.calls import ReplicaCall
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.strategies.replicas import reduction
from dtrain.strategies.replicas.calls import Decide, PeerProcesses, ThreadMeeting
from dtrain.strategies.replicas.options import CommunicationOptions
from dtrain.strategies.replicas.reduction import Leaf, ReduceOp, Summed
from dtrain.strategies.replicas.values import form, leaves, mapped, of_replica, regrouped
from dtrain.types import Array

T = TypeVar("T")


class CrossReplica:
    """The place outside of all replicas of a strategy."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy


class Updating:
    """The place of a function of `extended.update`, which sees the copies of the replica `index`."""

    def __init__(self, strategy: Any, index: int) -> None:
        self.strategy = strategy
        self.index = index


class _Own(threading.local):
    """The places that a thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.places: list[Any] = []


_own = _Own()
_scopes: list[CrossReplica] = []


def here() -> Any:
    """Return the place of the calling line; None: the default strategy's only replica."""
    if _own.places:
        return _own.places[-1]
    return _scopes[-1] if _scopes else None


@contextmanager
def entered(place: T) -> Iterator[T]:
    """Make `place` the place of the lines within, in this thread."""
    _own.places.append(place)
    try:
        yield place
    finally:
        _own.places.pop()


def strategy_of_scope() -> Any:
    """Return the strategy in whose `scope`, or for whom, the calling line runs; None if there is none."""
    place = here()
    return None if place is None else place.strategy


@contextmanager
def scope_of(strategy: T) -> Iterator[T]:
    """Open the scope of a strategy, for all threads.

    Raises:
        ContextError: the line runs in a replica, or another scope is open and one has several replicas.
    """
    place = here()
    if place is not None and not isinstance(place, CrossReplica):
        raise ContextError(
            "scope: expected to be outside of all replicas, found a function of strategy.run; open the scope "
            "around strategy.run, or use dt.distribute.get_replica_context().merge_call"
        )
    if place is not None and place.strategy is not strategy and _have_several(strategy, place.strategy):
        raise ContextError(
            f"scope: expected one strategy at a time, found the scope of {strategy!r} within that of "
            f"{place.strategy!r}"
        )
    opened = CrossReplica(strategy)
    _scopes.append(opened)
    try:
        yield strategy
    finally:
        _scopes.remove(opened)


def _have_several(*strategies: Any) -> bool:
    return any(strategy.num_replicas_in_sync > 1 for strategy in strategies)


class ReplicaGroup:
    """The replicas of this process, and through `peers` those of others.

    Attributes:
        replicas: how many run in this process.
        first: the number of its first one among all.
        peers: None where there are no other processes.
        updates: how many an optimizer has made in these replicas, for the status of the run.
        refusal: why the program's functions cannot run in them; None: they can.
        one_copy: whether variables have one copy, on one device; else each replica has one.
        ends: why this process ends where a loop begins; None: it does not.
    """

    def __init__(
        self,
        strategy: Any,
        replicas: int = 1,
        first: int = 0,
        peers: PeerProcesses | None = None,
        refusal: str | None = None,
        ends: str | None = None,
        *,
        devices: Sequence[str] = (),
        one_copy: bool = False,
    ) -> None:
        self.strategy = strategy
        self.refusal = refusal
        self.ends = ends
        self.devices = tuple(devices) or tuple(f"device:CPU:{index}" for index in range(replicas))
        self.one_copy = one_copy
        self.updates = 0
        self.replicas = replicas
        self.first = first
        self.peers = peers

    def check(self, what: str) -> None:
        """Raise a `ProgramError` if functions of the program cannot run here; end a process without part."""
        if self.ends is not None:
            sys.stdout.write(f"{self.ends}\n")
            raise SystemExit(0)
        if self.refusal is not None:
            raise ProgramError(f"{what}: {self.refusal}")

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are, in all processes."""
        return self.replicas * (1 if self.peers is None else self.peers.tasks)

    def summed(self, call: ReplicaCall, op: ReduceOp, of_replicas: Sequence[Sequence[Leaf]]) -> list[Leaf]:
        """Return sums or means over all replicas of all processes: one for each leaf of a replica."""
        sums = [reduction.total(parts) for parts in zip(*of_replicas, strict=True)]
        if self.peers is not None:
            sums = self._summed_over_tasks(self.peers, call, sums)
        if op is ReduceOp.MEAN:
            return [reduction.divided(each, self.num_replicas_in_sync) for each in sums]
        return sums

    def gathered(self, call: ReplicaCall, axis: int, of_replicas: Sequence[Sequence[Array]]) -> list[Array]:
        """Return arrays joined over all replicas of all processes."""
        parts = [reduction.joined(each, axis, call.kind) for each in zip(*of_replicas, strict=True)]
        if self.peers is None or not parts:
            return parts
        of_tasks = self.peers.exchange(call, parts)
        return [reduction.joined(each, axis, call.kind) for each in zip(*of_tasks, strict=True)]

    def _summed_over_tasks(self, peers: PeerProcesses, call: ReplicaCall, sums: Sequence[Leaf]) -> list[Leaf]:
        dense = iter(peers.all_reduce(call, [each for each in sums if isinstance(each, np.ndarray)]))
        result: list[Leaf] = []
        for each in sums:
            if isinstance(each, SparseRows):
                of_tasks = peers.exchange(call, [each.ids, each.rows])
                result.append(reduction.total([SparseRows(ids, rows) for ids, rows in of_tasks]))
            else:
                result.append(next(dense))
        return result


class ReplicaContext:
    """One replica, within a function that `Strategy.run` runs in it; see `tf.distribute.ReplicaContext`.

    Attributes:
        group: the replicas of this process and of others.
        index: the number of this replica in its process.
        meeting: where the replicas of this process call each other.
        strategy: the strategy whose replica it is.
    """

    def __init__(self, group: ReplicaGroup, index: int, meeting: ThreadMeeting, strategy: Any = None) -> None:
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
        op = reduction.as_op(reduce_op, "all_reduce")
        call, parts = Summed.of(op, value).given
        if not parts:
            raise InputError(f"all_reduce: expected at least one array, found {value!r}")
        reduction.check_one_place(leaves(value), parts, "all_reduce")
        found = iter(self.meet(call, parts, partial(self.group.summed, call, op), options))
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
        axis = reduction.as_axis(axis, "all_gather")
        given = [leaf for leaf in leaves(value) if not _is_python_number(leaf)]
        if any(isinstance(leaf, SparseRows) for leaf in given):
            raise InputError("all_gather: expected arrays, found SparseRows; make them dense first")
        parts = [np.asarray(reduction.as_leaf(leaf, "all_gather")) for leaf in given]
        for part in parts:
            if not -part.ndim <= axis < part.ndim:
                raise InputError(
                    f"all_gather: expected an array with axis {axis}, found {reduction.described(part)}"
                )
        shapes = ", ".join(reduction.described_but(part, axis) for part in parts)
        call = ReplicaCall.here("all_gather", f"{form(value)} {shapes}, axis {axis}")
        found = iter(self.meet(call, parts, partial(self.group.gathered, call, axis), options))
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

        def decide(of_replicas: Sequence[Any]) -> Any:
            merged_args, merged_kwargs = regrouped(of_replicas)
            with entered(CrossReplica(self.strategy)):
                return merge_fn(self.strategy, *merged_args, **merged_kwargs)

        given = tuple(args), dict(kwargs or {})
        return of_replica(self.meet(ReplicaCall.here("merge_call"), given, decide), self.index)

    def meet(
        self, call: ReplicaCall, value: Any, decide: Decide, options: CommunicationOptions | None = None
    ) -> Any:
        """Hand in a value to the other replicas of this process; see `ThreadMeeting.call`."""
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
