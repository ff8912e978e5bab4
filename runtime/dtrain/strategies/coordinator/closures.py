"""Closures as they travel: functions by their names, and nests of plain data as bytes.

Code never travels, and nothing is pickled: each worker has the same function in its own program. Data are
numbers, strings, bytes, arrays, and lists, tuples and dicts of such. An array is its dtype, its shape and
its bytes; a container is a list that begins with the letter of its kind.
"""

import sys
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import msgspec
import numpy as np

from dtrain.data.record_index.fingerprint import is_of_library
from dtrain.errors import DtrainError, InputError, NotAFunctionError, ProgramError
from dtrain.variables import DTYPE_BYTES

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
            raise NotAFunctionError(
                f"{what}: expected a function that is defined in a module, found {name[:80]}; functions do "
                "not travel, workers call the one that has this name in their own program, so methods, "
                "partials and other objects with a state of their own cannot be meant"
            )
        module, name = function.__module__, function.__qualname__
        code = function.__code__
        where = f"{name} ({code.co_filename}:{code.co_firstlineno})"
        if "<lambda>" in name:
            raise NotAFunctionError(f"{what}: {where} has no name; expected a function defined with def")
        if "<locals>" in name or function.__closure__:
            raise NotAFunctionError(
                f"{what}: {where} is defined inside another function, whose variables do not travel; define "
                "it at module level, and give it what it needs as arguments"
            )
        if self._lookup(module, name) is not function:
            raise NotAFunctionError(
                f"{what}: {where} was defined after the program first called its coordinator, or its name "
                "means something else there; workers stop at that first call, so define the function before"
            )
        self._check(module, function, f"{what}: {where}", NotAFunctionError)
        return module, name

    def of_object(self, value: object, what: str) -> tuple[str, str]:
        """Return module and name of this very object, or raise a `NotAFunctionError` if no module has it."""
        for module, name, found in self.objects(type(value)):
            if found is value:
                return module, name
        raise NotAFunctionError(
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
            raise ProgramError(
                f"this task's program has no {name} in module {module} where it first calls its coordinator: "
                "start every task with the same program, and define functions before that call"
            )
        self._check(module, found, f"{name} of module {module}", ProgramError)
        return found

    def _check(self, module: str, found: Any, what: str, error: type[DtrainError]) -> None:
        """Raise an error unless what was found in a module may be run as a closure.

        A function belongs to the module that defines it, and not to a module that imports it.
        """
        if not isinstance(found, FunctionType) or found.__module__ != module or not self._is_own(found):
            raise error(
                f"{what} may not be run as a closure: expected a function that is defined in the program's "
                "file or in one below its folder, not in an installed package; define it there, or decorate "
                "its definition with @dt.distribute.coordinator.closure"
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
        found = sys.modules.get(module) if module in self._modules else None
        return vars(found) if isinstance(found, ModuleType) else {}

    def _lookup(self, module: str, name: str) -> Any:
        first, *rest = name.split(".")
        found = self._names(module).get(first)
        for part in rest:
            found = vars(found).get(part) if isinstance(found, type) else None
            found = found.__func__ if isinstance(found, staticmethod) else found
        return found


Reference = tuple[Any, ...]
"""Plain data in the place of what a worker has of its own."""

DEPTH_MAX = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode(value: Any, what: str, refer: Callable[[Any], Reference | None] = lambda value: None) -> bytes:
    """Return a nest as bytes; raise an `InputError` for what is no plain data.

    `refer` returns what to send in the place of a value that does not travel itself; None: it does.
    """
    return _encode(_encoded(value, what, refer, 0))


def decode(data: bytes, resolve: Callable[[Reference], Any]) -> Any:
    """Return the nest, with `resolve` of its references; raise an `InputError` if the bytes are none."""
    try:
        return _read(_decode(data), resolve, 0)
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"what was received is no plain data: {error}") from None


def has_none(value: Any) -> bool:
    """Return whether there is a None anywhere in a nest."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return value is None or any(map(has_none, parts))


def _encoded(value: Any, what: str, refer: Callable[[Any], Reference | None], depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise InputError(f"{what}: expected nests of at most {DEPTH_MAX} levels")
    if isinstance(value, np.generic):  # of which some are Python's numbers as well
        return _of_array(np.asarray(value), True, what)
    if value is None or isinstance(value, bool | str | bytes | float):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InputError(f"{what}: expected whole numbers of 64 bits, found {value}")
        return value
    if (reference := refer(value)) is not None:
        return ["r", *reference]
    if isinstance(value, list | tuple):
        kind = "l" if isinstance(value, list) else "t"
        return [kind, *[_encoded(part, what, refer, depth + 1) for part in value]]
    if isinstance(value, dict):
        return [
            "d",
            *[
                [_encoded(key, what, refer, depth + 1), _encoded(part, what, refer, depth + 1)]
                for key, part in value.items()
            ],
        ]
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return _of_array(np.asarray(value), False, what)
    raise InputError(
        f"{what}: expected numbers, strings, arrays, and lists, tuples and dicts of such, found "
        f"{type(value).__name__}; only plain data travel between the tasks of a program"
    )


def _of_array(array: Any, is_number: bool, what: str) -> list[Any]:
    if array.dtype.name not in DTYPE_BYTES:
        raise InputError(f"{what}: expected arrays of {', '.join(DTYPE_BYTES)}, found {array.dtype}")
    native = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return ["n" if is_number else "a", array.dtype.name, list(array.shape), native.tobytes()]


def _read(told: Any, resolve: Callable[[Reference], Any], depth: int) -> Any:
    if not isinstance(told, list):
        return told
    if depth > DEPTH_MAX:
        raise ValueError("too many levels")
    match told:
        case ["l", *parts]:
            return [_read(part, resolve, depth + 1) for part in parts]
        case ["t", *parts]:
            return tuple([_read(part, resolve, depth + 1) for part in parts])
        case ["d", *pairs]:
            return {_read(key, resolve, depth + 1): _read(part, resolve, depth + 1) for key, part in pairs}
        case ["a" | "n" as kind, str(dtype), list(shape), bytes(content)] if dtype in DTYPE_BYTES:
            if len(content) != prod(shape) * DTYPE_BYTES[dtype]:
                raise ValueError(
                    f"an array of shape {shape} and dtype {dtype} has other than {len(content)} bytes"
                )
            array = np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
            return array[()] if kind == "n" else array
        case ["r", *reference]:
            return resolve(tuple(reference))
    raise ValueError(f"no form of data begins with {str(told)[:40]}")
