"""The execution of closures in a worker, and the datasets and iterators of which every worker has its own."""

import itertools
import signal
import traceback
from collections.abc import Iterator
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.errors import ContextError, InputError, NotSupportedError, OutOfRangeError, ProgramError
from dtrain.messages import Closure, Failure
from dtrain.runs.self_report import NO_ACTIVITY, Activity
from dtrain.strategies.coordinator.closures import ProgramNames, Reference, decode, encode, has_none
from dtrain.strategies.coordinator.values import VariableClient

TRACE_CHARACTERS = 20_000
TOLD_TO_STOP = 128 + signal.SIGTERM
"""The exit code of a task that leaves because of a SIGTERM, also in the midst of a closure."""


class Execution:
    """Runs the closures of one session in a worker."""

    def __init__(
        self, names: ProgramNames, client: VariableClient | None, activity: Activity = NO_ACTIVITY
    ) -> None:
        self._names = names
        self._client = client
        self._own = OwnValues(names, activity)

    def run(self, closure: Closure, arguments: bytes) -> bytes | Failure:
        """Run a closure. Every exception is the closure's own."""
        if self._client is not None:
            self._client.within(closure.number, closure.settled)
        try:
            args, kwargs = decode(arguments, self._own.resolve)
            result = self._names.find(closure.module, closure.function)(*args, **kwargs)
            result = None if has_none(result) else result
            return encode(result, f"the result of {closure.function}")
        except StopIteration as end:
            error = OutOfRangeError("an iterator of this worker is at its end")
            error.__cause__ = end
            return failure_of(error)
        except SystemExit as end:
            if end.code == TOLD_TO_STOP:
                raise
            what = f"{closure.function} called sys.exit({end.code!r}); a closure returns or raises an error"
            return failure_of(ProgramError(what))
        except Exception as error:
            return failure_of(error)


def failure_of(error: Exception) -> Failure:
    """Return an exception as it travels."""
    trace = "".join(traceback.format_exception(error))
    return Failure(kind=type(error).__name__, message=str(error), trace=trace[-TRACE_CHARACTERS:])


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
        """Refuse: only closures may take elements."""
        raise NotSupportedError(
            "next of a per-worker iterator in the coordinator: each worker has its own; give the iterator to "
            "a closure as an argument, and call next there"
        )


class OwnDataset:
    """A worker's own dataset in a closure, where it is only passed on."""

    def __iter__(self) -> Iterator[Any]:
        raise ContextError(
            "iter of a per-worker dataset in a closure would begin anew with every closure; give "
            "iter(dataset) to the closure as its argument"
        )


class OwnIterator(Iterator[Any]):
    """A worker's own iterator in a closure."""

    def __init__(self, dataset: Any, activity: Activity) -> None:
        self._next = activity.reading(iter(dataset).__next__)

    def __next__(self) -> Any:
        return self._next()

    def get_next(self) -> Any:
        """Return the next element, or raise an `OutOfRangeError`."""
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
