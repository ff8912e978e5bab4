"""The processes whose replicas read a distributed dataset together, seen from one of them.

Datasets whose every element is a step's: a batch for each replica of this process.

    distributed = strategy.experimental_distribute_dataset(dataset.batch(global_batch_size))
    for batch in distributed:
        strategy.run(step, args=(batch,))

Source: `tensorflow.python.distribute.input_lib` of TensorFlow 2.15.1, whose results are kept: a replica
without data gets a batch of size 0, and a step is the last one when no replica of any worker has data.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from dtrain.data.autosharding import distributed
from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.iterator import NO_VALUE, ElementIterator, Optional
from dtrain.data.node import INFINITE, Node
from dtrain.data.sharding import SplitBatches, WorkerShare
from dtrain.data.structure import arrays_of, empty_batch, map_arrays, with_open_batches
from dtrain.errors import InputError, NoElementError, NotADatasetError
from dtrain.runs.ledger import NO_ACTIVITY, Activity
from dtrain.strategies.replicas.contexts import ReplicaContext, here
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.strategies.replicas.values import DistributedValues, PerReplica, regrouped


class InputWorkers(msgspec.Struct):
    """All workers of a strategy: processes that read, each for its own replicas.

    Attributes:
        workers: how many there are.
        index: the number of this one.
        replicas: how many replicas each of them has.
        reduce: `Strategy.reduce`, for what the workers agree on; None where there is nothing to agree on.
        per_replica: whether a function makes a dataset for each replica. As in TensorFlow it stays so once it
            was asked for.
        activity: is notified of each batch that is read.
    """

    workers: int = 1
    index: int = 0
    replicas: int = 1
    reduce: Callable[[ReduceOp, Any, None], Any] | None = None
    per_replica: bool = False
    activity: Activity = NO_ACTIVITY

    @classmethod
    def of(cls, loops: Loops) -> "InputWorkers":
        """Return those of a strategy whose replicas run functions of a program."""
        workers = loops.num_replicas_in_sync // loops.replicas
        return cls(workers, loops.first // loops.replicas, loops.replicas, loops.reduce)

    @property
    def several(self) -> bool:
        return self.workers > 1

    @property
    def wraps(self) -> bool:
        """Whether an element is `PerReplica`, and not the only replica's batch itself."""
        return self.several or self.replicas > 1

    @property
    def context(self) -> InputContext:
        return InputContext(self.workers, self.index, self.workers * self.replicas)

    @property
    def contexts_of_pipelines(self) -> list[InputContext]:
        """One, or one for each replica."""
        if not self.per_replica:
            return [self.context]
        total = self.workers * self.replicas
        first = self.index * self.replicas
        return [InputContext(total, first + replica, total) for replica in range(self.replicas)]

    def total(self, count: int) -> int:
        """Return the sum over all workers, which call this equally often, of replicas that have data."""
        if self.reduce is None or not self.several:
            return count
        shares: list[Any] = [np.int64(count), *[np.int64(0)] * (self.replicas - 1)]
        return int(self.reduce(ReduceOp.SUM, PerReplica(shares), None))


DatasetFunction = Callable[[InputContext], Dataset]


class PerReplicaSpec(DistributedValues):
    """The `TensorSpec` of each replica's array; an element's spec has one in each array's place."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


class Pipeline(msgspec.Struct, frozen=True):
    """A dataset of batches of one replica, which `replicas` of this process read in turn."""

    dataset: Dataset
    replicas: int


class DistributedDataset:
    """Data for all replicas; see `Strategy.experimental_distribute_dataset`. It is iterated, and no more.

    Attributes:
        source: the dataset, or the function, that it was made of.
        cardinality: the number of elements of the dataset before it was distributed, INFINITE or UNKNOWN.
    """

    def __init__(
        self,
        source: Dataset | DatasetFunction,
        pipelines: Sequence[Pipeline],
        workers: InputWorkers,
        whole: Dataset,
        spec_node: Node,
        *,
        equal_lengths: bool = False,
    ) -> None:
        """Distribute pipelines.

        Args:
            source: see the attribute.
            pipelines: those of this process.
            workers: the processes that read.
            whole: the dataset before it was distributed, which knows its length and whether all its batches
                are full.
            spec_node: a pipeline of the form of the distributed ones that has elements in every worker.
            equal_lengths: whether it is certain that all workers have equally many batches.
        """
        self.source = source
        self.cardinality = whole.cardinality()
        self._pipelines = pipelines
        self._workers = workers
        self._whole = whole
        self._spec_node = spec_node
        self._equal_lengths = equal_lengths

    def __iter__(self) -> "DistributedIterator":
        streams = [(iter(each.dataset), each.replicas) for each in self._pipelines]
        return DistributedIterator(self, streams, self._workers)

    @property
    def endless(self) -> bool:
        """True if it is known that there is no end."""
        return self.cardinality == INFINITE

    @cached_property
    def fills(self) -> bool:
        """Whether replicas without data get empty batches as long as any other has data.

        Else a step that not all replicas of a process have data for is left out.
        """
        if self.endless:
            return False
        if self._workers.several:
            return True
        try:
            return any(None in each.shape for each in arrays_of(self._whole.element_spec))
        except NoElementError:
            return True  # there is nothing to be filled

    @property
    def agrees(self) -> bool:
        """Whether all workers must agree on every step, because some may have more batches than others."""
        return self._workers.several and not self.endless and not self._equal_lengths

    @cached_property
    def local_spec(self) -> Any:
        """The structure of `TensorSpec`s of one replica's batches."""
        return self._spec_node.spec

    @property
    def element_spec(self) -> Any:
        """An element's structure, with a `PerReplicaSpec` in each array's place.

        It is a plain `TensorSpec` where the strategy has a single replica.
        """
        spec = self.local_spec
        if self._workers.several and self.fills:
            spec = with_open_batches(spec)
        if not self._workers.wraps:
            return spec
        return map_arrays(lambda each: PerReplicaSpec([each] * self._workers.replicas), spec)


class DistributedIterator(ElementIterator):
    """A walk through a `DistributedDataset`; an element is `PerReplica`, and plain for a single replica.

    Args:
        dataset: what is walked through.
        streams: an iterator for each replica of this process, with its number.
        workers: the processes that read.
    """

    def __init__(
        self,
        dataset: DistributedDataset,
        streams: Sequence[tuple[Iterator[Any], int]],
        workers: InputWorkers,
    ) -> None:
        self._dataset = dataset
        self._streams = streams
        self._workers = workers
        self._fills = dataset.fills
        self._agrees = dataset.agrees

    @property
    def element_spec(self) -> Any:
        """That of the dataset."""
        return self._dataset.element_spec

    def __next__(self) -> Any:
        optional = self._next(self._fills)
        if not optional.has_value():
            raise StopIteration
        return optional.get_value()

    def get_next_as_optional(self) -> Optional:
        """Return the next element as an optional, which has no value at the end.

        Raises:
            InputError: it is called in a replica.
        """
        return self._next(not self._dataset.endless)

    def _next(self, fills: bool) -> Optional:
        """Return the next element; `fills`: as long as any replica has data, the others get empty batches."""
        if isinstance(here(), ReplicaContext):
            raise InputError(
                "next(iterator): expected to be outside of all replicas, found a function of strategy.run; "
                "get the element there and give it as an argument: strategy.run(step, args=(next(iterator),))"
            )
        batches: list[Any] = []
        for stream, replicas in self._streams:
            batches += self._workers.activity.reading(_of_replicas)(stream, replicas)
        count = sum(batch is not None for batch in batches)
        if self._agrees and fills:
            count = self._workers.total(count)
        if count == 0 or (not fills and count < len(batches)):
            return self._optional(NO_VALUE)
        if any(batch is None for batch in batches):
            empty = empty_batch(self._dataset.local_spec)
            batches = [empty if batch is None else batch for batch in batches]
        return self._optional(regrouped(batches, always=True) if self._workers.wraps else batches[0])

    def _optional(self, value: Any) -> Optional:
        return Optional(value, lambda: self._dataset.element_spec)


def _of_replicas(stream: Iterator[Any], replicas: int) -> list[Any]:
    """Return the next batch of each of some replicas; None for those that come after the end."""
    batches = list(islice(stream, replicas))
    return batches + [None] * (replicas - len(batches))


def distribute_dataset(dataset: Dataset, workers: InputWorkers) -> DistributedDataset:
    """Return what the replicas of this process get of a dataset of global batches.

    Raises:
        NotADatasetError: it is something else.
        InputError: its elements cannot be distributed; see `autosharding.distributed`.
    """
    check_dataset(dataset, "experimental_distribute_dataset")
    policy = dataset.options().experimental_distribute.auto_shard_policy
    node = distributed(dataset.node, workers.context, policy)
    by_batches = isinstance(node, WorkerShare) and isinstance(node.inputs[0], SplitBatches)
    return DistributedDataset(
        dataset,
        [Pipeline(Dataset(node), workers.replicas)],
        workers,
        dataset,
        node,
        equal_lengths=by_batches and node.cardinality >= 0,
    )


def distribute_function(function: DatasetFunction, workers: InputWorkers) -> DistributedDataset:
    """Return this process's share of what a function makes; raise a `NotADatasetError` for no dataset."""
    made = []
    for context in workers.contexts_of_pipelines:
        dataset = function(context)
        check_dataset(dataset, "distribute_datasets_from_function")
        made.append(dataset)
    shared = workers.replicas // len(made)
    pipelines = [Pipeline(dataset, shared) for dataset in made]
    return DistributedDataset(function, pipelines, workers, made[0], made[0].node)


def check_dataset(dataset: Any, what: str) -> None:
    """Raise a `NotADatasetError` unless this is a dataset."""
    if isinstance(dataset, DistributedDataset):
        raise NotADatasetError(
            f"{what}: expected a dtrain.data.Dataset, found one that is already distributed"
        )
    if not isinstance(dataset, Dataset):
        raise NotADatasetError(
            f"{what}: expected a dtrain.data.Dataset, found {type(dataset).__name__}; make one by "
            "dtrain.data.Dataset.from_tensor_slices(arrays).batch(global_batch_size), for example"
        )
