"""The methods of a strategy for loops of one's own; names are those of `tf.distribute.Strategy`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dtrain.process.tensorflow.cluster_resolver import TFConfigClusterResolver
from dtrain.strategies.context import TaskContext
from dtrain.strategies.reduction import ReduceOp
from dtrain.strategies.replicas.extended import Extended
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.options import RunOptions
from dtrain.strategies.replicas.values import ValueContext


class OwnLoops(Protocol):
    """A strategy in whose replicas a program runs functions of its own; `Strategy` inherits it."""

    context: TaskContext

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas' batches make one global step."""

    @property
    def cluster_resolver(self) -> TFConfigClusterResolver:
        """Which task of which cluster this process is: its `task_type`, `task_id` and `cluster_spec()`."""
        task = self.context.task
        return TFConfigClusterResolver() if task is None else TFConfigClusterResolver(task.role, task.index)

    @property
    def loops(self) -> Loops:
        """The replicas of this process, for loops of one's own."""
        made: Loops = self.__dict__.get("_loops") or self.__dict__.setdefault("_loops", self._make_loops())
        return made

    @property
    def extended(self) -> Extended:
        """Further methods, of which programs seldom need one; see `tf.distribute.StrategyExtended`."""
        return Extended(self.loops)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Run a function in every replica, all at the same time, and return what they return.

        Args:
            fn: run in each replica, in a thread of its own where there are several. It reaches the others by
                `dt.distribute.get_replica_context()`.
            args: its arguments; of `DistributedValues` in them each replica gets its own.
            kwargs: likewise.
            options: have no effect.

        Returns: A nest of the form that `fn` returns: `PerReplica` where the replicas differ, a plain value
            where all return the same object or equal Python numbers.

        Raises:
            ContextError: it is called in a replica.
            CallsDifferError: the replicas make different calls of `all_reduce` and the like.
            BaseException: what `fn` raised first in any replica; all have ended then.
        """
        return self.loops.run(fn, args, kwargs)

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: int | tuple[int, ...] | None) -> Any:
        """Return the sum or the mean of a value over all replicas, and over axes where they are given.

        Args:
            reduce_op: SUM or MEAN.
            value: as `run` returns it. The sum of a plain value with axis None is refused where there are
                several replicas.
            axis: None: element by element. Else a mean divides by the real count of elements, which may
                differ from replica to replica; of none at all it is NaN.

        Raises:
            InputError: the values do not fit each other, or there is no such axis.
            ContextError: it is called in a replica.
        """
        return self.loops.reduce(reduce_op, value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Return the arrays of all replicas, or those of each leaf of a nest, joined along an axis.

        Raises:
            InputError: the arrays do not fit each other, or there is no such axis.
            ContextError: it is called in a replica.
        """
        return self.loops.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return a value of each replica of this process; a plain value alone."""
        return self.loops.local_results(value)

    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Return `PerReplica` values, or a nest of them, that a function makes for each replica.

        Args:
            value_fn: ``(context) -> value``; the context says for which replica.
        """
        return self.loops.values_from_function(value_fn)

    def in_loop(self, updates: int) -> None:
        """Tell those who watch this task, if there are any, how far a loop of the program's own has come."""
        return

    def _make_loops(self) -> Loops:
        """Return the replicas: here, all of them are threads of this process."""
        return Loops(self, self.num_replicas_in_sync)
