"""What fit, evaluate and predict are fed with: batches of (x, y, sample_weight), dealt to replicas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import INFINITE, UNKNOWN
from dtrain.data.user_data import as_dataset
from dtrain.errors import InputError

DEFAULT_BATCH_SIZE = 32
NESTED = (dict, list, tuple)
EMPTY = "data: expected at least one batch, found an empty dataset"


@dataclass(frozen=True)
class Batch:
    """One replica's batch. `x` and `y` are arrays, or lists or dicts of them for models with several inputs or outputs."""

    x: Any
    y: Any = None
    sample_weight: Any = None

    @classmethod
    def of(cls, element: Any) -> "Batch":
        """A dataset's element: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        if not isinstance(element, tuple):
            return cls(element)
        if not 1 <= len(element) <= 3:
            raise InputError(f"data: expected elements x, (x, y) or (x, y, sample_weight), found a tuple of {len(element)}")
        return cls(*element)

    @property
    def size(self) -> int:
        """How many examples."""
        first = self.x
        while isinstance(first, NESTED):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return len(first)

    @property
    def input_shape(self) -> Any:
        """Of one example: what `Network.build` takes."""
        if isinstance(self.x, dict):
            return [np.shape(value)[1:] for value in self.x.values()]
        if isinstance(self.x, list | tuple):
            return [np.shape(value)[1:] for value in self.x]
        return np.shape(self.x)[1:]

    def weighted(self, class_weight: Mapping[int, float]) -> "Batch":
        """The same examples, their weights multiplied by those of their classes.

        Raises:
            InputError: the targets are not classes 0 to n - 1 (or one-hot vectors) of which each has a weight, or are of several
                outputs.
        """
        if isinstance(self.y, Mapping | list | tuple) or self.y is None:
            raise InputError("class_weight: expected the targets of one output; give sample_weight by output")
        y = np.asarray(self.y)
        classes = y.argmax(axis=-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        if unknown := set(classes.tolist()) - set(class_weight):
            raise InputError(f"class_weight: expected a weight for each class; found class {min(unknown)}, not in {class_weight}")
        weights = np.array([class_weight[each] for each in classes.tolist()], np.float32)
        return replace(self, sample_weight=weights if self.sample_weight is None else weights * np.reshape(self.sample_weight, -1))


def joined(x: Any, y: Any, sample_weight: Any) -> Any:
    """Keras's three arguments as one value: ``fit((x, y))`` and ``fit(x, y)`` mean the same."""
    if y is None and sample_weight is None:
        return x
    if isinstance(x, Dataset) or callable(x):
        raise InputError("data: a Dataset or a function brings its own targets and weights; give no y or sample_weight beside it")
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def held_out(data: Any, fraction: float) -> tuple[Any, Any]:
    """Arrays to train on and, from their end, arrays to validate on: Keras's `validation_split`.

    Raises:
        InputError: the data are no arrays, or one part would be empty.
    """
    if isinstance(data, Dataset) or callable(data):
        raise InputError("validation_split: expected arrays; a Dataset or a function is split with take and skip")
    size = Batch.of(data).size
    cut = int(size * (1 - fraction))
    if not 0 < cut < size:
        raise InputError(f"validation_split: expected a fraction that leaves examples on both sides of {size}, found {fraction}")
    return _rows(data, slice(cut)), _rows(data, slice(cut, None))


def _rows(data: Any, rows: slice) -> Any:
    if isinstance(data, Mapping):
        return {key: _rows(part, rows) for key, part in data.items()}
    if isinstance(data, tuple) or (isinstance(data, list) and all(isinstance(part, np.ndarray) for part in data)):
        return type(data)(_rows(part, rows) for part in data)
    return np.asarray(data)[rows]


@dataclass(frozen=True)
class Batches:
    """A stream of batches, which the replicas share.

    Attributes:
        dataset: of batches.
        own: whether the dataset is this replica's alone (made by a function of an InputContext), so that nothing is dealt.
    """

    dataset: Dataset
    own: bool = False

    @classmethod
    def of(cls, data: Any, *, batch_size: int | None, shuffle: bool, seed: int, context: InputContext | None = None) -> "Batches":
        """What the user gave; see `dtrain.data.user_data.as_dataset`."""
        if data is None or isinstance(data, str | bytes | PathLike | int | float):
            raise InputError(f"data: expected (x, y) arrays, a dtrain.data.Dataset or a function that returns one; found {data!r}")
        dataset = as_dataset(data, DEFAULT_BATCH_SIZE if batch_size is None else batch_size, shuffle, seed, context)
        return cls(dataset, own=callable(data) and not isinstance(data, Dataset))

    @property
    def count(self) -> int | None:
        """How many batches one pass has; None if that is unknown or endless."""
        cardinality = self.dataset.cardinality()
        return None if cardinality in (INFINITE, UNKNOWN) else cardinality

    @property
    def infinite(self) -> bool:
        """Whether it is known that a pass has no end."""
        return self.dataset.cardinality() == INFINITE

    def first(self) -> Batch:
        """The first batch, to learn the shapes from.

        Raises:
            InputError: there is none.
        """
        for element in self.dataset.take(1):
            return Batch.of(element)
        raise InputError(EMPTY)

    def stream(self, replicas: int, class_weight: Mapping[int, float] | None = None) -> "BatchStream":
        """Pass after pass without end, by the numbers that a session deals."""
        return BatchStream(self.dataset.repeat(), replicas if self.own else None, class_weight)

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        """Every batch of one pass, or the first `limit`."""
        return map(Batch.of, self.dataset if limit is None else self.dataset.take(limit))


OPEN_ITERATORS = 2
"""A replica's own batches come in order, and so do those in which it helps others."""


class BatchStream:
    """Batches by number: at once where the pipeline is addressable, else by reading and dropping what lies between."""

    def __init__(self, dataset: Dataset, own_among: int | None, class_weight: Mapping[int, float] | None = None) -> None:
        """Begin.

        Args:
            dataset: of batches, without end.
            own_among: None if all replicas share the stream; else it is this replica's alone, one of so many, and is read from
                front to back.
            class_weight: factors of the examples' weights, by class.
        """
        self._class_weight = class_weight
        self._dataset = dataset
        self._own_among = own_among
        self._iterators: list[DatasetIterator] = []
        self._last: tuple[int, Batch] | None = None

    def at(self, number: int) -> Batch:
        """The batch of a number; asking for the last one again costs nothing."""
        if self._last is None or self._last[0] != number:
            try:
                batch = Batch.of(self._own(number) if self._own_among else self._shared(number))
            except StopIteration:  # only reading tells of some datasets that they are empty
                raise InputError(EMPTY) from None
            self._last = number, batch if self._class_weight is None else batch.weighted(self._class_weight)
        return self._last[1]

    def _own(self, number: int) -> Any:
        if not self._iterators:
            # The first number says how far training had come; from then on only the order counts.
            self._open(number // (self._own_among or 1))
        return next(self._iterators[0])

    def _shared(self, number: int) -> Any:
        before = [iterator for iterator in self._iterators if iterator.position <= number]
        iterator = max(before, key=lambda iterator: iterator.position) if before else self._open(number)
        iterator.skip_to(number)
        return next(iterator)

    def _open(self, position: int) -> DatasetIterator:
        del self._iterators[: len(self._iterators) - OPEN_ITERATORS + 1]
        self._iterators.append(DatasetIterator(self._dataset.node, position=position))
        return self._iterators[-1]
