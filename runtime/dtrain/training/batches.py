"""Data of fit, evaluate and predict: batches of (x, y, sample_weight), whose parts are dealt to replicas."""

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.data.autosharding import steps_by_policy
from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.node import INFINITE, UNKNOWN, Node
from dtrain.data.options import AutoShardPolicy
from dtrain.data.ordering import Picked, Repeated, counted
from dtrain.data.prefetching.prefetched import tuning_of
from dtrain.data.prefetching.tuning import Tuning
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.data.record_index.fingerprint import files_read, size_and_checksum
from dtrain.data.stores.remote import shown
from dtrain.data.structure import arrays_of
from dtrain.data.user_data import as_dataset
from dtrain.errors import InputError
from dtrain.state.batch_cut import BatchCut
from dtrain.state.feed import DataFile
from dtrain.strategies.interface import Strategy
from dtrain.strategies.replicas.distributed_dataset import DistributedDataset
from dtrain.training.parts import EMPTY, ITERATION, Batch, PartsOfPipelines, PartStream, StepStream, Stream

DEFAULT_BATCH_SIZE = 32
FILES_MAX = 2000
"""Files of data whose change is noticed when a run is resumed."""


class BatchesOfReplicas(msgspec.Struct, frozen=True):
    """Data whose batches are one replica's each, as an Estimator's `input_fn` returns them."""

    data: Any


class Batches(msgspec.Struct, frozen=True, dict=True):
    """A stream of batches, which the replicas share.

    Attributes:
        pipelines: how many there are if a function of an InputContext makes them; else 0.
        pipeline: the number of the one that `dataset` is.
        uncut: whether a part is a batch, so that a step consumes several.
        steps: for a dataset whose options name a policy, makes the steps of so many replicas; else None.
        replicas: how many there are in sync, for `steps`.
    """

    dataset: Dataset
    pipelines: int = 0
    make: Callable[[int], Dataset] | None = None
    uncut: bool = False
    pipeline: int = 0
    steps: Callable[[int], Node] | None = None
    replicas: int = 1

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        batch_size: int | None,
        shuffle: bool,
        seed: int,
        context: InputContext | None = None,
    ) -> "Batches":
        """Convert the user's data as `user_data.as_dataset` does; undo the distribution of a dataset."""
        if isinstance(data, DistributedDataset):
            data = data.source
        if isinstance(data, BatchesOfReplicas):
            dealt = cls.of(data.data, batch_size=batch_size, shuffle=shuffle, seed=seed, context=context)
            return replace(dealt, uncut=True)
        if data is None or isinstance(data, str | bytes | PathLike | int | float):
            raise InputError(
                "data: expected (x, y) arrays, a dtrain.data.Dataset or a function that returns one; found "
                f"{data!r}"
            )
        context = context or InputContext()

        def make(pipeline: int) -> Dataset:
            of_pipeline = dataclasses.replace(context, input_pipeline_id=pipeline)
            return as_dataset(
                data, DEFAULT_BATCH_SIZE if batch_size is None else batch_size, shuffle, seed, of_pipeline
            )

        own = callable(data) and not isinstance(data, Dataset)
        pipelines = context.num_input_pipelines if own else 0
        return cls(
            make(context.input_pipeline_id),
            pipelines,
            make if own else None,
            pipeline=context.input_pipeline_id,
        )

    def for_fit(self, strategy: Strategy, *, counts: bool) -> "Batches":
        """Return the data as `for_replicas_of`, and in a run read by number if they can be.

        If it `counts`, the number of batches has to be known: they are read by number anyway, and where they
        cannot be, all are read once.
        """
        dealt = self.for_replicas_of(strategy)
        run_id = strategy.context.run_id
        if dealt.steps is not None or not (counts or run_id is not None):
            return dealt
        if run_id is not None and strategy.is_leader:
            tell_of_reading_again(dealt.dataset.node)
        dealt = dealt.addressed()
        if not counts or dealt.make is not None:
            return dealt
        return replace(dealt, dataset=Dataset(counted(dealt.dataset.node, _Telling(strategy.is_leader))))

    def for_replicas_of(self, strategy: Strategy) -> "Batches":
        """Return the data as the replicas of a strategy read them.

        Where the dataset's options name an AutoShardPolicy, a step is what
        `Strategy.experimental_distribute_dataset` gives in one, to the replicas of all workers; and of what a
        function makes they get what `distribute_datasets_from_function` gives. As in TensorFlow a pass has no
        more steps than the dataset has batches, where their number is known. On parameter servers a policy
        has no effect, as in TensorFlow, and a function makes a pipeline for each replica.
        """
        policy = self.dataset.options().experimental_distribute.auto_shard_policy
        place = strategy.input_workers
        if self.uncut or self.make is not None or policy is AutoShardPolicy.AUTO or not place.wraps:
            return self

        def steps(parts: int) -> Node:
            workers = place.workers if parts % place.workers == 0 else 1
            dealt = steps_by_policy(self.dataset.node, policy, workers, parts)
            batches = self.dataset.cardinality()
            return dealt if batches < 0 else Picked(dealt, limit=batches)

        return replace(self, steps=steps, replicas=strategy.num_replicas_in_sync)

    def addressed(self) -> "Batches":
        """Return the same batches, read by number wherever the pipeline allows it.

        Files are indexed for that; each replica then reads its own batches, and a resume begins at once.
        """
        make = self.make

        def by_number(dataset: Dataset) -> Dataset:
            return Dataset(addressed(dataset.node))

        wrapped = None if make is None else lambda pipeline: by_number(make(pipeline))
        return replace(self, dataset=by_number(self.dataset), make=wrapped)

    @property
    def count(self) -> int | None:
        """The number of batches of one pass, over all pipelines; None if that is unknown or endless."""
        if self.steps is not None:
            count = self.steps(self.replicas).cardinality
            return count if count >= 0 else None
        counts = [dataset.cardinality() for dataset in self._all]
        return None if INFINITE in counts or UNKNOWN in counts else sum(counts)

    @cached_property
    def _all(self) -> Sequence[Dataset]:
        return [self.dataset] if self.make is None else [self.make(each) for each in range(self.pipelines)]

    @property
    def files(self) -> tuple[DataFile, ...]:
        paths = [path for dataset in self._all for path in files_read(dataset.node)]
        known = [(shown(path), *size_and_checksum(path)) for path in dict.fromkeys(paths[:FILES_MAX])]
        return tuple(DataFile(*each) for each in known)

    @property
    def batch_size(self) -> int:
        """The examples in a batch of all replicas; 0 if unknown, or if batches are one replica's."""
        return 0 if self.pipelines or self.uncut else self.dataset.node.batch_size

    @property
    def infinite(self) -> bool:
        return self.dataset.cardinality() == INFINITE

    def first(self) -> Batch:
        """Return the first batch, to learn the shapes from; raise an `InputError` if there is none."""
        for dataset in self._own_first():
            for element in dataset.take(1):
                return Batch.of(element)
        raise InputError(EMPTY)

    def open_shape(self, shape: Any) -> Any:
        """Return an example's shape with None for each length that may vary by `element_spec`."""
        specs = arrays_of(Batch.of(self.dataset.element_spec).x)
        of_one = len(specs) == 1 and len(specs[0].shape) == len(shape) + 1
        return specs[0].shape[1:] if of_one else shape

    def _own_first(self) -> Iterator[Dataset]:
        yield self.dataset
        yield from self._all

    def one_example(self) -> Batch | None:
        """Return the first example as a batch; None if data would have to be read or computed for it."""
        node = self.dataset.node
        if not (node.addressable and node.batch_size and node.cardinality):
            return None
        element, _ = node.part(0, ITERATION, lambda size: range(min(size, 1)))
        return None if element is None else Batch.of(element)

    def streams(
        self, ranks: Sequence[int], cut: BatchCut, class_weight: Mapping[int, float] | None = None
    ) -> "Sequence[Stream]":
        """Return for each rank its parts by the numbers that the strategy deals, pass after pass without end.

        `class_weight` gives factors of the examples' weights, by class.
        """
        if self.steps is not None:
            steps = Dataset(Repeated(self.steps(cut.parts), None))
            return [StepStream(steps, cut, class_weight)] * len(ranks)
        make = self.make
        if make is None:
            return [self.stream(cut, class_weight)] * len(ranks)

        def stream(pipeline: int) -> PartStream:
            dataset = self.dataset if pipeline == self.pipeline else make(pipeline)
            return PartStream(dataset.repeat(), cut, class_weight, uncut=True, others=self.first)

        lengths = [dataset.cardinality() for dataset in self._all]
        return [PartsOfPipelines(stream, lengths, cut)] * len(ranks)

    def stream(self, cut: BatchCut, class_weight: Mapping[int, float] | None = None) -> "PartStream":
        return PartStream(self.dataset.repeat(), cut, class_weight, uncut=self.uncut)

    @property
    def tuning(self) -> Tuning | None:
        """How parts are read ahead; None where the dataset does not ask for it, or reads itself ahead.

        A stream that can only be read on is read ahead as such, by its own step `prefetch`.
        """
        return tuning_of(self.dataset.node) if self.dataset.node.addressable and not self.steps else None

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        return map(Batch.of, self.dataset if limit is None else self.dataset.take(limit))


class _Telling(msgspec.Struct):
    """Prints how many data were counted, after 2 s and then each 30 s, if it `shows`, as in the leader."""

    shows: bool
    due_s: float = msgspec.field(default_factory=lambda: time.monotonic() + 2.0)

    def __call__(self, count: int) -> None:
        if self.shows and (now_s := time.monotonic()) >= self.due_s:
            self.due_s = now_s + 30.0
            print(
                f"fit: reads the data once to count them, {count} elements so far; steps_per_epoch, or "
                "dt.data.experimental.assert_cardinality, says how many there are",
                file=sys.stderr,
                flush=True,
            )


def tell_of_reading_again(node: Node) -> None:
    """Warn, once for each cause, of data that can only be read from the front."""
    found = tuple(obstacles(node))
    if found and found not in _told:
        _told.add(found)
        warnings.warn(
            f"data: {' and '.join(found)} can only be read from the front: every replica reads all of it, "
            "and a resume reads again what comes before its step, of its pass if the length is known "
            "(dt.data.experimental.assert_cardinality); .cache(FILE) behind it keeps what it gives once and "
            "for all",
            stacklevel=4,
        )


_told: set[tuple[str, ...]] = set()
