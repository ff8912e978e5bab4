"""Data of fit, evaluate and predict: batches of (x, y, sample_weight), whose parts are dealt to replicas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import INFINITE, UNKNOWN, rows_of
from dtrain.data.user_data import as_dataset, check_lengths
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import WHOLE, LossScale
from dtrain.protocol.batch_cut import BatchCut

DEFAULT_BATCH_SIZE = 32
ITERATION = (0,)
"""Every call of `fit` reads a stream from its beginning."""
NESTED = (dict, list, tuple)
EMPTY = "data: expected at least one batch, found an empty dataset"


@dataclass(frozen=True)
class Batch:
    """Examples that are computed together; `x` and `y` are arrays, or lists or dicts of arrays."""

    x: Any
    y: Any = None
    sample_weight: Any = None

    @classmethod
    def of(cls, element: Any) -> "Batch":
        """Return a dataset's element: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        if not isinstance(element, tuple):
            return cls(element)
        if not 1 <= len(element) <= 3:
            raise InputError(
                f"data: expected elements x, (x, y) or (x, y, sample_weight), found a tuple of {len(element)}"
            )
        return cls(*element)

    @cached_property
    def size(self) -> int:
        """The number of examples."""
        first = self.x
        while isinstance(first, NESTED):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return len(first)

    @property
    def input_shape(self) -> Any:
        """The shape of one example, for `Network.build`."""
        if isinstance(self.x, dict):
            return [np.shape(value)[1:] for value in self.x.values()]
        if isinstance(self.x, list | tuple):
            return [np.shape(value)[1:] for value in self.x]
        return np.shape(self.x)[1:]

    def weighted(self, class_weight: Mapping[int, float]) -> "Batch":
        """Return the same examples, their weights multiplied by those of their classes.

        Raises:
            InputError: the targets are not classes 0 to n - 1 (or one-hot vectors) of which each has a
                weight, or belong to several outputs.
        """
        if isinstance(self.y, Mapping | list | tuple) or self.y is None:
            raise InputError("class_weight: expected the targets of one output; give sample_weight by output")
        y = np.asarray(self.y)
        classes = y.argmax(axis=-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        if unknown := set(classes.tolist()) - set(class_weight):
            raise InputError(
                f"class_weight: expected a weight for each class; found class {min(unknown)}, not in "
                f"{class_weight}"
            )
        weights = np.array([class_weight[each] for each in classes.tolist()], np.float32)
        return replace(
            self,
            sample_weight=weights
            if self.sample_weight is None
            else weights * np.reshape(self.sample_weight, -1),
        )


def joined(x: Any, y: Any, sample_weight: Any) -> Any:
    """Return Keras's three arguments as one value: ``fit((x, y))`` and ``fit(x, y)`` mean the same."""
    if y is None and sample_weight is None:
        return x
    if isinstance(x, Dataset) or callable(x):
        raise InputError(
            "data: a Dataset or a function brings its own targets and weights; give no y or sample_weight "
            "beside it"
        )
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def held_out(data: Any, fraction: float) -> tuple[Any, Any]:
    """Return arrays to train on and, from their end, arrays to validate on: Keras's `validation_split`.

    Raises:
        InputError: the data are no arrays, or one part would be empty.
    """
    if isinstance(data, Dataset) or callable(data):
        raise InputError(
            "validation_split: expected arrays; a Dataset or a function is split with take and skip"
        )
    check_lengths(data)
    size = Batch.of(data).size
    cut = int(size * (1 - fraction))
    if not 0 < cut < size:
        raise InputError(
            f"validation_split: expected a fraction that leaves examples on both sides of {size}, found "
            f"{fraction}"
        )
    return _rows(data, slice(cut)), _rows(data, slice(cut, None))


def _rows(data: Any, rows: slice) -> Any:
    if isinstance(data, Mapping):
        return {key: _rows(part, rows) for key, part in data.items()}
    if isinstance(data, tuple) or (
        isinstance(data, list) and all(isinstance(part, np.ndarray) for part in data)
    ):
        return type(data)(_rows(part, rows) for part in data)
    return np.asarray(data)[rows]


class Part(NamedTuple):
    """One replica's part of a batch.

    Attributes:
        batch: its examples; None where it has none.
        parts: into how many parts the batch is cut.
        empty: how many of them have no examples: the last ones.
        batch_size: how many examples the batch has.
        mixed: whether a step may be made of parts of several batches.
    """

    batch: Batch | None
    parts: int = 1
    empty: int = 0
    batch_size: int = 0
    mixed: bool = False

    def scale(self, weighs_examples: bool) -> LossScale:
        """Return the factors that make the mean over a step's parts, or examples, the batch's gradient."""
        if self.batch is None or self.parts == 1:
            return WHOLE
        if weighs_examples:
            return LossScale(sums=self.batch_size / self.batch.size)
        return LossScale(self.parts, 1.0 if self.mixed else self.parts / (self.parts - self.empty))


@dataclass(frozen=True)
class BatchesOfReplicas:
    """Data whose batches are one replica's each, as an Estimator's `input_fn` returns.

    A step consumes several of them.
    """

    data: Any


@dataclass(frozen=True)
class Batches:
    """A stream of batches, which the replicas share.

    Attributes:
        dataset: of batches.
        pipelines: how many there are if each replica has a dataset of its own (made by a function of an
            InputContext), so that nothing is dealt; else 0.
        make: makes the dataset of a pipeline.
        pipeline: the number of the one that `dataset` is.
        uncut: whether a part is a batch, so that a step consumes several.
    """

    dataset: Dataset
    pipelines: int = 0
    make: Callable[[int], Dataset] | None = None
    uncut: bool = False
    pipeline: int = 0

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
        """Take the user's data; see `dtrain.data.user_data.as_dataset`."""
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
            of_pipeline = replace(context, input_pipeline_id=pipeline)
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

    @property
    def count(self) -> int | None:
        """The number of batches of one pass, over all pipelines; None if that is unknown or endless."""
        others = map(self.make, range(self.pipelines)) if self.make is not None else [self.dataset]
        counts = [dataset.cardinality() for dataset in others]
        return None if INFINITE in counts or UNKNOWN in counts else sum(counts)

    @property
    def batch_size(self) -> int:
        """Return the examples in a batch of all replicas; 0 if unknown, or if batches are one replica's."""
        return 0 if self.pipelines or self.uncut else self.dataset.node.batch_size

    @property
    def infinite(self) -> bool:
        """True if it is known that a pass has no end."""
        return self.dataset.cardinality() == INFINITE

    def first(self) -> Batch:
        """Return the first batch, to learn the shapes from.

        Raises:
            InputError: there is none.
        """
        for element in self.dataset.take(1):
            return Batch.of(element)
        raise InputError(EMPTY)

    def one_example(self) -> Batch | None:
        """Return the first example as a batch; None if data would have to be read or computed for it."""
        node = self.dataset.node
        if not (node.addressable and node.batch_size and node.cardinality):
            return None
        element, _ = node.part(0, ITERATION, lambda size: range(min(size, 1)))
        return None if element is None else Batch.of(element)

    def streams(
        self, ranks: Sequence[int], cut: BatchCut, class_weight: Mapping[int, float] | None = None
    ) -> "list[PartStream]":
        """Return for each replica pass after pass without end, by the numbers that the strategy deals.

        Replicas share a stream whose parts are dealt.

        Args:
            ranks: of the replicas.
            cut: how batches are cut.
            class_weight: factors of the examples' weights, by class.
        """
        if self.make is None:
            return [self.stream(cut, class_weight)] * len(ranks)
        pipelines = [rank % self.pipelines for rank in ranks]
        own = [self.dataset if each == self.pipeline else self.make(each) for each in pipelines]
        return [replace(self, dataset=dataset).stream(cut, class_weight) for dataset in own]

    def stream(self, cut: BatchCut, class_weight: Mapping[int, float] | None = None) -> "PartStream":
        """Return pass after pass of one pipeline without end; arguments as in `streams`."""
        return PartStream(self.dataset.repeat(), self.pipelines, cut, class_weight, uncut=self.uncut)

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        """Yield every batch of one pass, or the first `limit`."""
        return map(Batch.of, self.dataset if limit is None else self.dataset.take(limit))


OPEN_ITERATORS = 2
"""A replica's own parts come in order, and so do those that come back from others."""


class PartStream:
    """Parts of batches by number: at once if the pipeline is addressable, else by reading up to them."""

    def __init__(
        self,
        dataset: Dataset,
        pipelines: int,
        cut: BatchCut,
        class_weight: Mapping[int, float] | None,
        *,
        uncut: bool = False,
    ) -> None:
        """Begin.

        Args:
            dataset: of batches, without end.
            pipelines: 0 if all replicas share the stream; else the number of pipelines, of which this replica
                has one alone and reads it from front to back, a batch a part.
            cut: how batches are cut.
            class_weight: factors of the examples' weights, by class.
            uncut: whether a part is a batch.
        """
        self._uncut = uncut
        self._class_weight = class_weight
        self._dataset = dataset
        self._addressable = dataset.node.addressable
        self._pipelines = pipelines
        self._cut = cut
        self._iterators: list[DatasetIterator] = []
        self._last: tuple[int, Part] | None = None
        self._read: tuple[int, Any] | None = None

    def at(self, number: int) -> Part:
        """Return the part of a number; the latest one is cached."""
        if self._last is None or self._last[0] != number:
            try:
                self._last = number, self._own(number) if self._pipelines else self._shared(number)
            except StopIteration:  # some datasets are found to be empty only by reading
                raise InputError(EMPTY) from None
        return self._last[1]

    def _own(self, number: int) -> Part:
        if not self._iterators:
            # The first number is the position at which training resumes; from then on only the order counts.
            self._open(number // self._pipelines)
        parts = self._cut.parts
        batch = self._weighted(next(self._iterators[0]))
        return Part(batch, parts, 0, batch.size * parts)

    def _shared(self, number: int) -> Part:
        cut = self._cut
        if self._uncut:
            whole = self._weighted(
                self._dataset.node.element(number, ITERATION) if self._addressable else self._batch(number)
            )
            return Part(whole, cut.parts, 0, whole.size * cut.parts)
        index, part = divmod(number, cut.parts)
        node = self._dataset.node

        def rows(size: int) -> range:
            return cut.rows(part, size)

        if self._addressable:
            element, size = node.part(index, ITERATION, rows)
        else:
            element, size = rows_of(self._batch(index), rows)
        batch = None if element is None else self._weighted(element)
        return Part(batch, cut.parts, cut.parts - cut.filled(size), size, cut.even)

    def _weighted(self, element: Any) -> Batch:
        batch = Batch.of(element)
        return batch if self._class_weight is None else batch.weighted(self._class_weight)

    def _batch(self, index: int) -> Any:
        """Return a whole batch of a stream that can only be read on."""
        if self._read is None or self._read[0] != index:
            before = [iterator for iterator in self._iterators if iterator.position <= index]
            iterator = max(before, key=lambda iterator: iterator.position) if before else self._open(index)
            iterator.skip_to(index)
            self._read = index, next(iterator)
        return self._read[1]

    def _open(self, position: int) -> DatasetIterator:
        del self._iterators[: len(self._iterators) - OPEN_ITERATORS + 1]
        self._iterators.append(DatasetIterator(self._dataset.node, ITERATION, position))
        return self._iterators[-1]
