"""Closures: functions by their names, and the worker that runs them with what it has of its own.

Code never travels, and nothing is pickled: each worker has the same function in its own program. Arguments
and results are plain data; a worker has its own datasets and iterators, which stand there as references.
"""

import itertools
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from dtrain import errors
from dtrain.data.dataset import Dataset
from dtrain.data.record_index.fingerprint import is_of_library
from dtrain.formats import plain_data
from dtrain.messages import Attended, Closure, Failure, Refusal, RefusalKind, TakeClosure
from dtrain.runs.ledger import NO_ACTIVITY, Activity
from dtrain.runs.reporting import Account
from dtrain.strategies.replicas.values import leaves, mapped
from dtrain.wire.peer import Peer

MAIN = "__main__"
T = TypeVar("T")
_marked: set[Any] = set()


def closure(function: T) -> T:
    """Let workers run a function that is defined outside the program's own files; return it.

    Args:
        function: a function at the top level of a module, which workers find by its name.
    """
    _marked.add(function)
    return function


class ProgramNames:
    """The names of a program, as they were when it first called its coordinator.

    A worker runs the program up to there and no further, so it has what was there then.
    """

    def __init__(self) -> None:
        """Note the names, and where the program's own files lie.

        That is below the folder of its file, or of what a link to it leads to, but not in Python's folders.
        """
        self._modules = frozenset(sys.modules)
        self._main = dict(vars(sys.modules[MAIN])) if MAIN in sys.modules else {}
        file = self._main.get("__file__") or ""
        self._folders = {way.parent for way in (Path(file).absolute(), Path(file).resolve()) if file}
        pythons = Path(sys.prefix), Path(sys.base_prefix)
        self._pythons = [each for each in pythons if not self._folders.isdisjoint(each.parents)]

    def of_function(self, function: Any, what: str) -> tuple[str, str]:
        """Return module and name of a function, or raise a `NotAFunctionError` if workers lack it."""
        if not isinstance(function, FunctionType):
            name = getattr(function, "__qualname__", None) or repr(function)
            raise errors.NotAFunctionError(
                f"{what}: expected a function that is defined in a module, found {name[:80]}; functions do "
                "not travel, workers call the one that has this name in their own program, so methods, "
                "partials and other objects with a state of their own cannot be meant"
            )
        module, name, code = function.__module__, function.__qualname__, function.__code__
        why: str | None
        if "<lambda>" in name:
            why = "has no name; expected a function defined with def"
        elif "<locals>" in name or function.__closure__:
            why = (
                "is defined inside another function, whose variables do not travel; define it at module "
                "level, and give it what it needs as arguments"
            )
        elif self._lookup(module, name) is not function:
            why = (
                "was defined after the program first called its coordinator, or its name means something "
                "else there; workers stop at that first call, so define the function before"
            )
        else:
            why = self._obstacle(module, function)
        if why is not None:
            raise errors.NotAFunctionError(f"{what}: {name} ({code.co_filename}:{code.co_firstlineno}) {why}")
        return module, name

    def of_object(self, value: object, what: str) -> tuple[str, str]:
        """Return module and name of this very object, or raise a `NotAFunctionError` if no module has it."""
        for module, name, found in self.objects(type(value)):
            if found is value:
                return module, name
        raise errors.NotAFunctionError(
            f"{what}: this {type(value).__name__} has no name at module level that it had when the program "
            "first called its coordinator, so workers cannot find theirs"
        )

    def objects(self, kind: type[T]) -> Iterator[tuple[str, str, T]]:
        """Yield module, name and value of all values of a class at module level."""
        for module in [MAIN, *sorted(self._modules - {MAIN})]:
            for name, found in list(self._names(module).items()):
                if isinstance(found, kind):
                    yield module, name, found

    def find(self, module: str, name: str) -> Callable[..., Any]:
        """Return the function of a name, or raise a `ProgramError` if it may not be run as a closure."""
        found: Callable[..., Any] | None = self._lookup(module, name)
        if found is None:
            raise errors.ProgramError(
                f"this task's program has no {name} in module {module} where it first calls its coordinator: "
                "start every task with the same program, and define functions before that call"
            )
        if (why := self._obstacle(module, found)) is not None:
            raise errors.ProgramError(f"{name} of module {module} {why}")
        return found

    def _obstacle(self, module: str, found: Any) -> str | None:
        """Return why what was found in a module may not be run as a closure.

        A function belongs to the module that defines it, and not to a module that imports it.
        """
        if isinstance(found, FunctionType) and found.__module__ == module and self._is_own(found):
            return None
        return (
            "may not be run as a closure: expected a function that is defined in the program's file or in "
            "one below its folder, not in an installed package; define it there, or decorate its definition "
            "with @dt.distribute.coordinator.closure"
        )

    def _is_own(self, function: FunctionType) -> bool:
        """Return whether a function is marked, or defined in the program's own files."""
        file = function.__code__.co_filename
        if function in _marked or (function.__module__ == MAIN and file == self._main.get("__file__", file)):
            return True
        path = Path(file)  # "<frozen os>" is below no folder
        below = any(map(path.is_relative_to, self._folders)) and not is_of_library(function)
        return below and not any(map(path.is_relative_to, self._pythons))

    def _names(self, module: str) -> dict[str, Any]:
        if module == MAIN:
            return self._main
        return getattr(sys.modules.get(module), "__dict__", {}) if module in self._modules else {}

    def _lookup(self, module: str, name: str) -> Any:
        first, *rest = name.split(".")
        found = self._names(module).get(first)
        for part in rest:
            found = vars(found).get(part) if isinstance(found, type) else None
            found = found.__func__ if isinstance(found, staticmethod) else found
        return found


def encode(value: Any, what: str, other: Callable[[Any], Any] = plain_data.refuse) -> bytes:
    """Return a nest as bytes, arrays of other libraries as numpy's; see `plain_data.encode`.

    Raises:
        InputError: something is no plain data.
    """

    def sent(part: Any) -> Any:
        return np.asarray(part) if hasattr(part, "__array__") else other(part)

    try:
        return plain_data.encode(value, other=sent)
    except TypeError as error:
        raise errors.InputError(
            f"{what}: expected numbers, strings, arrays, and lists, tuples and dicts of such, found {error}; "
            "only plain data travel between the tasks of a program"
        ) from None


TRACE_CHARACTERS = 20_000
TOLD_TO_STOP = 128 + signal.SIGTERM
"""The exit code of a task that leaves because of a SIGTERM, also in the midst of a closure."""


class Execution:
    """Runs the closures of one session in a worker, with the datasets and iterators of its own."""

    def __init__(self, names: ProgramNames, activity: Activity = NO_ACTIVITY) -> None:
        self._names = names
        self._activity = activity
        self._datasets: dict[int, Any] = {}
        self._iterators: dict[int, OwnIterator] = {}

    def run(self, closure: Closure, arguments: bytes) -> bytes | Failure:
        """Run a closure. Every exception is the closure's own."""
        try:
            args, kwargs = mapped(self.resolve, plain_data.decode(arguments))
            result = self._names.find(closure.module, closure.function)(*args, **kwargs)
            has_none = any(leaf is None for leaf in leaves(result))
            return encode(None if has_none else result, f"the result of {closure.function}")
        except StopIteration as end:
            error = errors.OutOfRangeError("an iterator of this worker is at its end")
            error.__cause__ = end
            return failure_of(error)
        except SystemExit as end:
            if end.code == TOLD_TO_STOP:
                raise
            what = f"{closure.function} called sys.exit({end.code!r}); a closure returns or raises an error"
            return failure_of(errors.ProgramError(what))
        except Exception as error:
            return failure_of(error)

    def resolve(self, value: Any) -> Any:
        """Return this worker's own value of a reference, made when a closure first asks; others as they are.

        Raises:
            InputError: the function returned no dataset.
        """
        match value:
            case plain_data.Reference((None, *_)):
                return OwnDataset()
            case plain_data.Reference((int(iterator), int(number), str(module), str(name), bool(called))):
                if iterator not in self._iterators:
                    dataset = self._dataset(number, module, name, called)
                    self._iterators[iterator] = OwnIterator(dataset, self._activity)
                return self._iterators[iterator]
            case plain_data.Reference(parts):
                raise errors.InputError(f"no per-worker value is {parts!r:.80}")
        return value

    def _dataset(self, number: int, module: str, name: str, called: bool) -> Any:
        if number not in self._datasets:
            known = {found[:2]: found[2] for found in self._names.objects(Dataset)}
            dataset = self._names.find(module, name)() if called else known.get((module, name))
            if not hasattr(dataset, "__iter__"):
                raise errors.InputError(
                    f"create_per_worker_dataset: expected a dataset from {name}, found "
                    f"{type(dataset).__name__}"
                )
            self._datasets[number] = dataset
        return self._datasets[number]


def failure_of(error: Exception) -> Failure:
    """Return an exception as it travels."""
    trace = "".join(traceback.format_exception(error))
    return Failure(kind=type(error).__name__, message=str(error), trace=trace[-TRACE_CHARACTERS:])


class PerWorkerValues:
    """A value of which every worker has its own, as a coordinator gives it to closures.

    See `tf.distribute.coordinator.PerWorkerValues`.

    Args:
        reference: where workers find it.
    """

    def __init__(self, reference: tuple[Any, ...]) -> None:
        self.reference = reference


class PerWorkerDataset(PerWorkerValues):
    """A dataset that every worker makes for itself; `iter` of it is an iterator for closures."""

    _numbers = itertools.count()

    def __init__(self, module: str, name: str) -> None:
        """Refer to a function of no arguments that returns a dataset, or to a dataset, by its name."""
        called = isinstance(self, PerWorkerDatasetFromDatasetFunction)
        super().__init__((None, next(self._numbers), module, name, called))

    def __iter__(self) -> "PerWorkerDistributedIterator":
        """Return an iterator that begins anew in every worker."""
        return PerWorkerDistributedIterator((next(self._numbers), *self.reference[1:]))


class PerWorkerDatasetFromDatasetFunction(PerWorkerDataset):
    """A dataset that a function of the program makes."""


class PerWorkerDatasetFromDataset(PerWorkerDataset):
    """A dataset that the program has made at module level."""


class PerWorkerDistributedIterator(PerWorkerValues, Iterator[Any]):
    """An iterator of every worker over its own dataset, an argument for closures."""

    def __next__(self) -> Any:
        """Refuse: only closures may take elements."""
        raise errors.NotSupportedError(
            "next of a per-worker iterator in the coordinator: each worker has its own; give the iterator to "
            "a closure as an argument, and call next there"
        )


class OwnDataset:
    """A worker's own dataset in a closure, where it is only passed on."""

    def __iter__(self) -> Iterator[Any]:
        raise errors.ContextError(
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
            raise errors.OutOfRangeError("get_next: the dataset of this worker is at its end") from None


Run = Callable[[Closure, bytes], bytes | Failure]
"""Runs a closure with its encoded arguments; returns its encoded result, or why it has failed."""


def work(peer: Peer, reporter: Account, connect_s: float, begin: Callable[[Attended], Run]) -> None:
    """Run closures, one after the other, until the coordinator's program has ended.

    Args:
        peer: the coordinator, which may take `connect_s` to come.
        begin: begins a session.

    Raises:
        WaitTimeoutError: the coordinator does not come.
        PeerLostError: it is gone for good.
        PeerRefusedError: it does not want this task.
        ProgramError: a session cannot be begun by this task's program.
    """
    said, blocks = TakeClosure(), list[Any]()
    ended = 0
    reporter.waiting(peer.name)
    peer.open(connect_s)
    try:
        while True:
            peer.send(said, blocks)
            reporter.waiting(peer.name)
            frame = peer.receive()
            reporter.waiting(None)
            match frame.message:
                case Attended(session=session) as attended:
                    said, blocks = TakeClosure(session=session), []
                    try:
                        run = begin(attended)
                    except errors.DtrainError as error:
                        peer.notify(TakeClosure(session=session, failure=failure_of(error)))
                        raise
                case Closure() as closure:
                    came = run(closure, frame.blocks[0].tobytes() if frame.blocks else b"")
                    failure = came if isinstance(came, Failure) else None
                    said = TakeClosure(session=said.session, closure=closure.number, failure=failure)
                    blocks = [] if isinstance(came, Failure) else [np.frombuffer(came, np.uint8)]
                    ended += 1
                    reporter.progress(ended)
                case Refusal(kind=RefusalKind.ENDED):
                    return
                case other:
                    reason = other.reason if isinstance(other, Refusal) else type(other).__name__
                    raise errors.PeerRefusedError(f"{peer.name} answered: {reason}")
    finally:
        reporter.waiting(None)
        peer.close()
