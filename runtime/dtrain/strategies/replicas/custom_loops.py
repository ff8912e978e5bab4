"""The methods of a strategy for custom loops and their input, and `strategy.extended` with the rarer ones.

Names and signatures are those of `tf.distribute.Strategy` and `tf.distribute.StrategyExtended`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dtrain.data.dataset import Dataset
from dtrain.errors import InputError
from dtrain.process.tensorflow import TFConfigClusterResolver
from dtrain.strategies.context import TaskContext
from dtrain.strategies.replicas.contexts import Updating, entered
from dtrain.strategies.replicas.distributed_dataset import (
    DatasetFunction,
    DistributedDataset,
    InputWorkers,
    distribute_dataset,
    distribute_function,
)
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.options import InputOptions, InputReplicationMode, RunOptions, given_options
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.strategies.replicas.values import Mirrored, ValueContext, of_replica, regrouped
from dtrain.strategies.replicas.variable import Variable


class Extended:
    """Devices, and reductions and updates from outside of the replicas.

    Args:
        loops: of the strategy.
    """

    experimental_require_static_shapes = False

    def __init__(self, loops: Loops) -> None:
        self._loops = loops

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The names of the devices of this process's replicas."""
        return self._loops.devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The names of the devices on which variables lie: those of all replicas, or the one of all."""
        return ("CPU:0",) if self._loops.one_copy else self._loops.devices

    def variable_created_in_scope(self, variable: Variable) -> bool:
        """Return whether a variable was made in the scope of this strategy."""
        return variable.group is self._loops

    def reduce_to(self, reduce_op: ReduceOp | str, value: Any, destinations: Any) -> Any:
        """Return the sum or the mean of a value over all replicas, where `destinations` is.

        Args:
            reduce_op: SUM or MEAN.
            value: as `run` returns it.
            destinations: a variable: the result is `Mirrored`, the same in each replica. Anything else, such
                as the name of a device: the result is plain.
        """
        result = self._loops.reduce(reduce_op, value, None)
        return Mirrored([result] * self._loops.replicas) if isinstance(destinations, Variable) else result

    def batch_reduce_to(
        self, reduce_op: ReduceOp | str, value_destination_pairs: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """Return `reduce_to` of each pair of a value and its destination."""
        return [self.reduce_to(reduce_op, value, where) for value, where in value_destination_pairs]

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call ``fn(var, *args, **kwargs)`` once for each replica's copy of a variable.

        Args:
            var: `fn` reads and assigns the copy of one replica.
            fn: the update.
            args: further arguments; of `DistributedValues` in them each replica's own.
            kwargs: likewise.
            group: whether to return the variable as a whole, not what `fn` returns.
        """
        self._loops.check_outside("extended.update")
        results = []
        for index in range(self._loops.replicas):
            own_args, own_kwargs = of_replica((tuple(args), dict(kwargs or {})), index)
            with entered(Updating(self._loops.strategy, index)):
                results.append(fn(var, *own_args, **own_kwargs))
        return var if group else regrouped(results)


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


class OwnInput(OwnLoops, Protocol):
    """A strategy that distributes datasets to its replicas; `Strategy` inherits it."""

    @property
    def input_workers(self) -> InputWorkers:
        """The processes that read distributed datasets, seen from this one."""
        made: InputWorkers = self.__dict__.get("_input_workers") or self.__dict__.setdefault(
            "_input_workers", self._make_input_workers()
        )
        return made

    def experimental_distribute_dataset(
        self, dataset: Dataset, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return a dataset whose every element holds a batch for each replica.

        A batch of the given dataset is the global one: it is cut into one for each replica of all workers,
        and where there are several workers each reads its share, as
        ``dataset.options().experimental_distribute.auto_shard_policy`` says. `fit` needs none of this.

        Args:
            dataset: of global batches.
            options: see `InputOptions`.

        Raises:
            NotADatasetError: the dataset is something else.
            NotBatchedError: there are several replicas, and the dataset has no batches.
            NotFoundError: the policy is FILE, and the dataset reads no files.
            NotSupportedError: the options ask for a pipeline for each replica.
        """
        if (checked := given_options(options, "experimental_distribute_dataset")) is not None:
            checked.check_for_dataset()
        return distribute_dataset(dataset, self.input_workers)

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return a dataset of which each element holds a batch for each replica, made by a function.

        What the function returns is taken as it is: it batches by
        ``context.get_per_replica_batch_size(global_batch_size)`` and deals the data to workers itself, by
        ``dataset.shard(context.num_input_pipelines, context.input_pipeline_id)``. The replicas of a worker
        get its batches in turn.

        Args:
            dataset_fn: ``(InputContext) -> Dataset``, called once in each worker.
            options: see `InputOptions`. A pipeline for each replica stays so in later calls.

        Raises:
            NotADatasetError: the function returns something else.
            InputError: it is no function, or the options contradict each other.
        """
        who = "distribute_datasets_from_function"
        if not callable(dataset_fn):
            raise InputError(f"{who}: expected a function of an InputContext, found {dataset_fn!r}")
        if (checked := given_options(options, who)) is not None:
            checked.check_for_function()
            if checked.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
                self.input_workers.per_replica = True
        return distribute_function(dataset_fn, self.input_workers)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return `distribute_datasets_from_function`, of which this is the deprecated name."""
        warnings.warn(
            "experimental_distribute_datasets_from_function is the deprecated name of "
            "distribute_datasets_from_function",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.distribute_datasets_from_function(dataset_fn, options)

    def _make_input_workers(self) -> InputWorkers:
        """Return the workers: here, each runs functions of the program in its replicas."""
        return InputWorkers.of(self.loops)
