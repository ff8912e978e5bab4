"""Elements as bytes, for helper processes and files: nests of arrays, text, bytes; nothing is executed."""

import re
from typing import Any

import msgspec
import numpy as np

from dtrain.data.structure import Element
from dtrain.errors import InputError

_DTYPE = re.compile(r"[<>|=][a-zA-Z][0-9]*(\[\w+\])?")
SCALARS = (bytes, str, int, float, bool, type(None))


class _OtherTypeError(Exception):
    """A value is no plain data."""


def encode(element: Element, purpose: str = "map with processes") -> bytes:
    """Return an element as bytes.

    Args:
        element: the element.
        purpose: for the error.

    Raises:
        InputError: it has something else than arrays, text, bytes and numbers.
    """
    try:
        return msgspec.msgpack.encode(_plain(element))
    except _OtherTypeError as error:
        raise InputError(f"{purpose}: expected arrays, text, bytes and numbers, found {error}") from None


def decode(data: bytes) -> Element:
    """Return the element that was encoded; arrays own their memory."""
    return _element(msgspec.msgpack.decode(data))


def _plain(element: Any) -> list[Any]:
    if isinstance(element, tuple | list):
        return ["t" if isinstance(element, tuple) else "l", [_plain(each) for each in element]]
    if isinstance(element, dict):
        return ["d", list(element), [_plain(each) for each in element.values()]]
    if isinstance(element, np.ndarray | np.generic):
        array = np.asarray(element)
        if array.dtype == object:
            return ["o", array.shape, [_plain(each) for each in array.reshape(-1).tolist()]]
        scalar = isinstance(element, np.generic)
        return ["s" if scalar else "a", array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()]
    if isinstance(element, SCALARS):
        return ["v", element]
    raise _OtherTypeError(type(element).__name__)


def _element(plain: list[Any]) -> Any:
    kind, *rest = plain
    if kind in "tl":
        parts = [_element(each) for each in rest[0]]
        return tuple(parts) if kind == "t" else parts
    if kind == "d":
        return dict(zip(rest[0], map(_element, rest[1]), strict=True))
    if kind == "o":
        shape, values = rest
        array = np.empty(len(values), object)
        array[:] = [_element(each) for each in values]
        return array.reshape(shape)
    if kind in "as":
        dtype, shape, data = rest
        if not _DTYPE.fullmatch(dtype):  # numpy would parse others as an expression
            raise ValueError(f"expected the dtype of an array, found {dtype[:40]!r}")
        found = np.frombuffer(bytearray(data), dtype).reshape(shape)
        return found[()] if kind == "s" else found
    return rest[0]
