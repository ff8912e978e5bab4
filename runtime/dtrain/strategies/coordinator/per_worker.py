"""Values of which every worker has its own: datasets and their iterators."""

import itertools
from collections.abc import Iterator
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.errors import ContextError, InputError, NotSupportedError, OutOfRangeError
from dtrain.runs.self_report.activity import NO_ACTIVITY, Activity
from dtrain.strategies.coordinator.functions import ProgramNames
from dtrain.strategies.coordinator.plain_data import Reference

DATASET = "dataset"
ITERATOR = "iterator"


class PerWorkerValues:
    """A value of which every worker has its own, as a coordinator gives it to closures.

    See `tf.distribute.coordinator.PerWorkerValues`.

    Args:
        reference: where workers find it.
    """

    def __init__(self, reference: Reference) -> None:
        self.reference = reference


class PerWorkerDataset(PerWorkerValues):
    """A dataset that every worker makes for itself; `iter` of it is an iterator for closures."""

    _iterators = itertools.count()

    def __init__(self, number: int, module: str, name: str) -> None:
        """Refer to a function of no arguments that returns a dataset, or to a dataset, by its name."""
        called = isinstance(self, PerWorkerDatasetFromDatasetFunction)
        super().__init__((DATASET, number, module, name, called))

    def __iter__(self) -> "PerWorkerDistributedIterator":
        """Return an iterator that begins anew in every worker."""
        return PerWorkerDistributedIterator(self, next(self._iterators))


class PerWorkerDatasetFromDatasetFunction(PerWorkerDataset):
    """A dataset that a function of the program makes."""


class PerWorkerDatasetFromDataset(PerWorkerDataset):
    """A dataset that the program has made at module level."""


class PerWorkerDistributedIterator(PerWorkerValues, Iterator[Any]):
    """An iterator of every worker over its own dataset, an argument for closures."""

    def __init__(self, dataset: PerWorkerDataset, number: int) -> None:
        super().__init__((ITERATOR, number, *dataset.reference))

    def __next__(self) -> Any:
        """Refuse: only closures may take elements.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "next of a per-worker iterator in the coordinator: each worker has its own; give the iterator to "
            "a closure as an argument, and call next there"
        )


class OwnDataset:
    """A worker's own dataset in a closure, where it is only passed on."""

    def __iter__(self) -> Iterator[Any]:
        """Refuse.

        Raises:
            ContextError: always.
        """
        raise ContextError(
            "iter of a per-worker dataset in a closure would begin anew with every closure; give "
            "iter(dataset) to the closure as its argument"
        )


class OwnIterator(Iterator[Any]):
    """A worker's own iterator in a closure."""

    def __init__(self, dataset: Any, activity: Activity) -> None:
        self._next = activity.reading(iter(dataset).__next__)

    def __next__(self) -> Any:
        """Return the next element."""
        return self._next()

    def get_next(self) -> Any:
        """Return the next element.

        Raises:
            OutOfRangeError: there is none.
        """
        try:
            return self._next()
        except StopIteration:
            raise OutOfRangeError("get_next: the dataset of this worker is at its end") from None


class OwnValues:
    """The datasets and iterators of one worker, in one session."""

    def __init__(self, names: ProgramNames, activity: Activity = NO_ACTIVITY) -> None:
        self._names = names
        self._activity = activity
        self._datasets: dict[int, Any] = {}
        self._iterators: dict[int, OwnIterator] = {}

    def resolve(self, reference: Reference) -> Any:
        """Return this worker's own value, made when a closure first asks for it.

        Raises:
            InputError: the function returned no dataset.
        """
        match reference:
            case (kind, int(iterator), *rest) if kind == ITERATOR:
                if iterator not in self._iterators:
                    self._iterators[iterator] = OwnIterator(self._dataset(tuple(rest)), self._activity)
                return self._iterators[iterator]
            case (kind, *_) if kind == DATASET:
                return OwnDataset()
        raise ValueError(f"no per-worker value is {reference!r:.80}")

    def _dataset(self, reference: Reference) -> Any:
        _, number, module, name, called = reference
        if number not in self._datasets:
            known = {found[:2]: found[2] for found in self._names.objects(Dataset)}
            dataset = self._names.find(module, name)() if called else known.get((module, name))
            if not hasattr(dataset, "__iter__"):
                raise InputError(
                    f"create_per_worker_dataset: expected a dataset from {name}, found "
                    f"{type(dataset).__name__}"
                )
            self._datasets[number] = dataset
        return self._datasets[number]
