"""The fingerprint of a pipeline or a function, and the files that a pipeline reads.

Fingerprints are equal only if both compute the same elements. They cover the code of functions and every
value that they can reach: defaults, closures, the global names that they use, those of the program's own
modules too. Functions of libraries count by their names. A value that cannot be looked into, as an object
of a class of the user's own, has no fingerprint.
"""

import re
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from dtrain.data.joining import Interleaved
from dtrain.data.node import INFINITE, Node, walk
from dtrain.data.readers.rows import IndexedRows
from dtrain.data.sources import Generated
from dtrain.data.stores.opening import open_file

DIGEST_BYTES = 12
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, np.dtype)
_NAMED = (BuiltinFunctionType, ModuleType, np.ufunc)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_PACKAGES = frozenset({"site-packages", "dist-packages"})


class NoFingerprintError(Exception):
    """A pipeline has a value that cannot be looked into; the text names it."""


def fingerprint(*values: Any) -> str:
    """Return the fingerprint of pipelines, functions and plain values; raise a `NoFingerprintError`."""
    told = repr(_Teller().of(values))
    return blake2b(told.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


class _Teller:
    """Turns values into plain data; an object that occurs again becomes the number of the first."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self._kept: list[object] = []  # an object that ended would leave its id to another one

    def of(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return type(value).__name__, repr(value)
        if isinstance(value, _NAMED):
            return "name", getattr(value, "__module__", None), getattr(value, "__qualname__", str(value))
        if isinstance(value, type):
            file = getattr(sys.modules.get(value.__module__), "__file__", None)
            if not (value.__module__ == "builtins" or _is_library(value.__module__, file)):
                raise NoFingerprintError(f"the class {value.__module__}.{value.__qualname__}")
            return "class", f"{value.__module__}.{value.__qualname__}"
        if id(value) in self._met:
            return "met", self._met[id(value)]
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        return type(value).__name__, self._inside(value)

    def _inside(self, value: Any) -> Any:
        match value:
            case np.ndarray() | np.generic():
                return self._of_array(np.asarray(value))
            case list() | tuple():
                return [self.of(each) for each in value]
            case dict():
                return [(self.of(key), self.of(each)) for key, each in value.items()]
            case set() | frozenset():
                return sorted(repr(self.of(each)) for each in value)
            case re.Pattern():
                return self.of(value.pattern), value.flags
            case FunctionType():
                return self._of_function(value)
            case MethodType():
                return self.of(value.__self__), self.of(value.__func__)
            case partial():
                return self.of(value.func), self.of(value.args), self.of(value.keywords)
            case IndexedRows():
                return value.path, asdict(value.index.facts), self.of(value.format)
        return self._of_attributes(value)

    def _of_attributes(self, value: object) -> Any:
        """Tell an object of dtrain's; what it computes from the rest only when asked is left out."""
        kind = type(value)
        attributes = asdict(value) if isinstance(value, msgspec.Struct) else getattr(value, "__dict__", None)
        if not kind.__module__.startswith("dtrain.") or attributes is None:
            raise NoFingerprintError(f"an object of {kind.__module__}.{kind.__qualname__}")
        computed = {*getattr(kind, "computed", ()), "_others", "alike"}
        return [
            (name, self.of(each))
            for name, each in sorted(attributes.items())
            if name not in computed and not isinstance(getattr(kind, name, None), cached_property)
        ]

    def _of_array(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.hasobject:
            return array.shape, [self.of(each) for each in array.reshape(-1).tolist()]
        data = blake2b(np.ascontiguousarray(array).data).hexdigest()
        return array.dtype.str, array.shape, data

    def _of_function(self, function: FunctionType) -> Any:
        bound = (
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            [self._of_cell(cell) for cell in function.__closure__ or ()],
        )
        if is_of_library(function):
            return function.__module__, function.__qualname__, bound
        reached = [(name, self.of(value)) for name, value in _reached(function)]
        return _code(function.__code__), bound, reached

    def _of_cell(self, cell: Any) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            return "empty"


def is_of_library(function: FunctionType) -> bool:
    """Return whether Python, an installed package or dtrain defines a function, and not the program."""
    return _is_library(function.__module__ or "", function.__code__.co_filename)


def _is_library(module: str, file: str | None) -> bool:
    path = file or ""
    installed = path.startswith(_LIBRARIES) or not _PACKAGES.isdisjoint(Path(path).parts)
    return installed or module.partition(".")[0] in ("dtrain", "dtrain_cli")


def _is_own_module(value: Any) -> bool:
    if not isinstance(value, ModuleType) or value.__name__ in sys.builtin_module_names:
        return False
    return not _is_library(value.__name__, getattr(value, "__file__", None))


def _reached(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global values that a function may use, also those in modules of the program's own."""
    names = _names(function.__code__)
    scopes: list[Mapping[str, Any]] = [function.__globals__]
    for scope in scopes:
        for name in names:
            if name not in scope:
                continue
            value = scope[name]
            yield name, value
            if _is_own_module(value) and all(vars(value) is not known for known in scopes):
                scopes.append(vars(value))


def _code(code: CodeType) -> Any:
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_name, code.co_code.hex(), code.co_names, constants


def _names(code: CodeType) -> list[str]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def files_read(node: Node) -> list[str]:
    """Return the paths of all files, but of those that a generator names or a function opens."""
    return list(dict.fromkeys(_files(node)))


def size_and_checksum(path: str) -> tuple[int, int]:
    """Return a file's size and a checksum; they stay the same when it is copied or touched."""
    facts = open_file(path).facts()
    told = f"{facts.nbytes} {facts.first_crc32} {facts.last_crc32} {facts.version} {facts.samples_crc32}"
    return facts.nbytes, zlib.crc32(told.encode())


def _files(node: Node) -> list[str]:
    found = [*node.files]
    for each in node.inputs:
        found += _files(each)
    # A generator may give each of its elements only once.
    if not isinstance(node, Interleaved) or any(isinstance(each, Generated) for each in walk(node)):
        return found
    if (first := node.made_first) is not None and _files(first):
        names = node.inputs[0]
        while names.cardinality == INFINITE and len(names.inputs) == 1:
            names = names.inputs[0]  # what is repeated without end
        found += [path for made in node.made_of(names) for path in _files(made)]
    return found
