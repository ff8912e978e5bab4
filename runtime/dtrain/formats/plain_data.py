"""Nests of plain data as bytes: numbers, text, bytes, arrays, and lists, tuples and dicts of such.

Everything comes back as what it was. Nothing else is encoded or decoded, and nothing is executed. In msgpack
a part of a nest is a list that begins with the letter of its kind.
"""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import numpy as np

NUMBERS = "biuf"
"""The kinds of dtypes of truth values, whole numbers and numbers."""
SCALARS = (bytes, str, int, float, bool, type(None))
_DTYPE = re.compile(r"[<>|=][a-zA-Z][0-9]*(\[\w+\])?")


class Reference(msgspec.Struct, frozen=True):
    """A name, as plain data, for an object that the receiver has itself."""

    parts: tuple[Any, ...]


def refuse(value: Any) -> NoReturn:
    """Raise a TypeError that names the type of a value, which is no plain data."""
    raise TypeError(f"a {type(value).__name__}")


def encode(plain: Any, *, kinds: str | None = NUMBERS, other: Callable[[Any], Any] = refuse) -> bytes:
    """Return plain data as bytes; raise a TypeError that names what cannot be encoded.

    `kinds` are those of the arrays' dtypes; None: all, also objects that are plain data. `other` returns
    plain data to send in the place of a value of another type.
    """
    try:
        return msgspec.msgpack.encode(_encoded(plain, kinds, other))
    except OverflowError as error:
        raise TypeError(f"a whole number of more than 64 bits: {error}") from None
    except RecursionError:
        raise TypeError("a nest of too many levels") from None


def decode(content: bytes) -> Any:
    """Return the plain data of bytes, with new arrays; raise a ValueError for other bytes."""
    try:
        return _decoded(msgspec.msgpack.decode(content))
    except (msgspec.DecodeError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"no plain data: {error}") from None


def _encoded(value: Any, kinds: str | None, other: Callable[[Any], Any]) -> list[Any]:
    if isinstance(value, tuple | list):
        return ["t" if isinstance(value, tuple) else "l", [_encoded(each, kinds, other) for each in value]]
    if isinstance(value, dict):
        keys = [key if isinstance(key, str) else _encoded(key, kinds, other) for key in value]
        return ["d", keys, [_encoded(each, kinds, other) for each in value.values()]]
    if isinstance(value, np.ndarray | np.generic):  # some of numpy's numbers are Python's as well
        array = np.asarray(value)
        if kinds is not None and array.dtype.kind not in kinds:
            raise TypeError(f"a {type(value).__name__} of {array.dtype}")
        if array.dtype == object:
            return ["o", array.shape, [_encoded(each, kinds, other) for each in array.reshape(-1).tolist()]]
        scalar = isinstance(value, np.generic)
        return ["s" if scalar else "a", array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()]
    if isinstance(value, SCALARS):
        return ["v", value]
    if isinstance(value, Reference):
        return ["r", _encoded(value.parts, kinds, other)]
    return _encoded(other(value), kinds, other)


def _decoded(told: Any) -> Any:
    kind, *rest = told
    if kind == "v":
        return rest[0]
    if kind in ("t", "l"):
        parts = [_decoded(each) for each in rest[0]]
        return tuple(parts) if kind == "t" else parts
    if kind in ("a", "s"):
        dtype, shape, data = rest
        if not _DTYPE.fullmatch(dtype):  # numpy would parse others as an expression
            raise ValueError(f"expected the dtype of an array, found {dtype[:40]!r}")
        array = np.frombuffer(bytearray(data), dtype).reshape(shape)
        return array[()] if kind == "s" else array
    if kind == "d":
        keys = [key if isinstance(key, str) else _decoded(key) for key in rest[0]]
        return dict(zip(keys, map(_decoded, rest[1]), strict=True))
    if kind == "o":
        shape, values = rest
        objects = np.empty(len(values), object)
        objects[:] = [_decoded(each) for each in values]
        return objects.reshape(shape)
    if kind == "r":
        return Reference(_decoded(rest[0]))
    raise ValueError(f"expected the kind of a part, found {str(kind)[:40]}")
