"""`ClusterCoordinator`: schedules functions of a program on workers, by what a strategy offers to it."""

import builtins
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dtrain import errors
from dtrain.data.dataset import Dataset
from dtrain.errors import CancelledError, ClosureError, DtrainError, InputError, NotAStrategyError
from dtrain.roles.coordinator.closures import ClosureService, Scheduled
from dtrain.strategies.coordinator.closures import ProgramNames, Reference, decode, encode
from dtrain.strategies.coordinator.execution import (
    PerWorkerDataset,
    PerWorkerDatasetFromDataset,
    PerWorkerDatasetFromDatasetFunction,
    PerWorkerValues,
)


class WaitsFor(Protocol):
    """A queue of closures."""

    def wait_for(self, closure: Scheduled) -> None:
        """Wait until a closure has ended."""


class RemoteValue:
    """The result of a closure, which a worker runs; see `tf.distribute.coordinator.RemoteValue`."""

    def fetch(self) -> Any:
        """Wait for the result and return it.

        Raises:
            CancelledError: the closure was not begun, because an earlier one had failed.
            Exception: what has ended the closure; every time.
        """
        raise NotImplementedError

    def get(self) -> Any:
        """Return the same as `fetch`."""
        return self.fetch()


class RemoteValueImpl(RemoteValue):
    """The result of one closure."""

    def __init__(self, closure: Scheduled, queue: WaitsFor) -> None:
        self._closure = closure
        self._queue = queue

    def fetch(self) -> Any:
        self._queue.wait_for(self._closure)
        if (error := error_of(self._closure)) is not None:
            raise error
        return decode(self._closure.result, lambda reference: None)


def error_of(closure: Scheduled) -> Exception | None:
    """Return the exception of a closure that has ended, as it was in the worker.

    Of Python's own exceptions and dtrain's it is of the same class; of others a `ClosureError`.
    """
    if closure.cancelled:
        return CancelledError(
            f"{closure} was not begun, because an earlier one had failed; schedule it again"
        )
    failure = closure.failure
    if failure is None:
        return None
    kind = getattr(errors, failure.kind, None) or getattr(builtins, failure.kind, None)
    own = isinstance(kind, type) and issubclass(kind, DtrainError | Exception)
    where = f"{closure} on {closure.worker}"
    try:
        error = kind(f"{failure.message} ({where})") if own and kind is not None else None
    except TypeError:  # one of Python's that wants more than a text
        error = None
    if not isinstance(error, Exception):
        error = ClosureError(f"{where} has ended with {failure.kind}: {failure.message}")
    error.add_note(failure.trace)
    return error


class Coordination(Protocol):
    """The coordinator's side, once the program has first called it; other tasks never return from there."""

    names: ProgramNames
    service: ClosureService

    def end(self, *, farewell: bool) -> None:
        """End the program's part; with `farewell` no process of the coordinator will come any more."""


class Coordinates(Protocol):
    """A strategy that can have a coordinator."""

    has_coordinator: bool
    coordination: Coordination | None

    def coordinate(self) -> Coordination:
        """Begin to coordinate; a worker or an evaluator stays here, and raises SystemExit(0) at the end."""


class ClusterCoordinator:
    """The coordinator of a cluster with parameter servers.

    See `tf.distribute.coordinator.ClusterCoordinator`. Every task runs the program. At its first `schedule`,
    `create_per_worker_dataset`, `join`, `done` or `fetch` the workers begin to run closures, and never return
    from there; the chief goes on alone. A program that runs without a cluster has one worker, a thread.

    Attributes:
        strategy: whose workers run the closures.
    """

    strategy: Any
    _datasets: int

    def __new__(cls, strategy: Any) -> "ClusterCoordinator":
        """Return the coordinator of a strategy, which has one.

        Raises:
            NotAStrategyError: the strategy has no parameter servers.
        """
        if not hasattr(strategy, "coordinate"):
            raise NotAStrategyError(
                f"ClusterCoordinator: expected a ParameterServerStrategy, found {type(strategy).__name__}"
            )
        made: ClusterCoordinator | None = strategy.__dict__.get("_cluster_coordinator")
        if made is None:
            made = super().__new__(cls)
            made.strategy = strategy
            made._datasets = 0
            strategy._cluster_coordinator = made
            strategy.has_coordinator = True
            strategy.loops.refusal = None  # each closure is the only replica
        return made

    def schedule(
        self, fn: Callable[..., Any], args: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Have a worker call a function, as soon as one is free; return at once.

        It is called once, and what it changes on the servers is changed once, also if the worker dies
        meanwhile and another one begins again. What it does elsewhere may then happen twice.

        Args:
            fn: defined at module level before the first call of the coordinator; functions do not travel.
            args, kwargs: plain data, and per-worker iterators.

        Raises:
            NotAFunctionError: the workers have no such function.
            TypeError: the arguments are not those of `fn`.
            InputError: an argument is no plain data.
            Exception: what has ended an earlier closure, once.
        """
        coordination = self._begun()
        self._raise_error(coordination, wait=False)
        module, name = coordination.names.of_function(fn, "schedule")
        if args is not None and not isinstance(args, list | tuple):
            raise InputError(f"schedule: expected a list or tuple as args, found {type(args).__name__}")
        given = tuple(args or ()), dict(kwargs or {})
        try:
            inspect.signature(fn).bind(*given[0], **given[1])
        except TypeError as error:
            raise TypeError(f"schedule: {name}{inspect.signature(fn)}: {error}") from None
        closure = Scheduled(module, name, encode(given, f"schedule: an argument of {name}", _refer))
        while not coordination.service.schedule(closure):  # one has failed since we asked
            self._raise_error(coordination, wait=False)
        return RemoteValueImpl(closure, coordination.service)

    def join(self) -> None:
        """Wait until every closure has ended.

        Raises:
            Exception: what has ended one, once; the closures that were not begun are cancelled.
            WaitTimeoutError: all workers are gone for too long.
        """
        self._raise_error(self._begun(), wait=True)

    def done(self) -> bool:
        """Return whether every closure has ended.

        Raises:
            Exception: as `join`.
        """
        coordination = self._begun()
        self._raise_error(coordination, wait=False)
        return coordination.service.done

    def fetch(self, val: Any) -> Any:
        """Return a nest with the result in the place of each `RemoteValue`; waits for them.

        Raises:
            Exception: what has ended one of the closures, every time.
            CancelledError: one was not begun.
        """
        self._begun()
        return _fetched(val)

    def create_per_worker_dataset(
        self, dataset_fn: Callable[[], Any] | Dataset
    ) -> PerWorkerDatasetFromDatasetFunction | PerWorkerDatasetFromDataset:
        """Let every worker make a dataset of its own; `iter` of it is an argument for closures.

        A worker that is started again makes it again.

        Args:
            dataset_fn: a function without arguments that returns a dataset; or a dataset. Workers find it by
                its name at module level.

        Raises:
            InputError: it is neither.
            NotAFunctionError: the workers have none of this name.
        """
        names = self._begun().names
        what = "create_per_worker_dataset"
        kind: type[PerWorkerDataset]
        if isinstance(dataset_fn, Dataset):
            kind, found = PerWorkerDatasetFromDataset, names.of_object(dataset_fn, what)
        elif callable(dataset_fn):
            kind, found = PerWorkerDatasetFromDatasetFunction, names.of_function(dataset_fn, what)
        else:
            raise InputError(f"{what}: expected a function or a dataset, found {dataset_fn!r:.80}")
        self._datasets += 1
        return kind(self._datasets, *found)

    def _begun(self) -> Coordination:
        """Begin at the first call; a task that does not coordinate serves here."""
        strategy: Coordinates = self.strategy
        return strategy.coordination or strategy.coordinate()

    def _raise_error(self, coordination: Coordination, *, wait: bool) -> None:
        """Raise the error of the first closure that failed, and forget it."""
        service = coordination.service
        service.check()
        if (wait or service.failed) and (closure := service.take_error()) is not None:
            error = error_of(closure)
            assert error is not None, "what has failed has an error"
            raise error


def _refer(value: Any) -> Reference | None:
    if isinstance(value, PerWorkerValues):
        return value.reference
    if isinstance(value, RemoteValue):
        raise InputError(
            "schedule: expected plain data as arguments, found the result of another closure; fetch it first"
        )
    return None


def _fetched(value: Any) -> Any:
    if isinstance(value, RemoteValue):
        return value.fetch()
    if isinstance(value, list):
        return [_fetched(part) for part in value]
    if isinstance(value, tuple):
        parts = [_fetched(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: _fetched(part) for key, part in value.items()}
    return value
