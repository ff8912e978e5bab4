"""Nests of plain data as bytes, and back: what travels to closures and from them. Nothing is pickled.

Numbers, strings, bytes, arrays, and lists, tuples and dicts of such. An array is its dtype, its shape and its
bytes; a container is a list that begins with the letter of its kind.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
import numpy as np

from dtrain.errors import InputError
from dtrain.variables import DTYPE_BYTES

Reference = tuple[Any, ...]
"""Plain data in the place of what a worker has of its own."""

DEPTH_MAX = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode(value: Any, what: str, refer: Callable[[Any], Reference | None] = lambda value: None) -> bytes:
    """Return a nest as bytes.

    Args:
        value: the nest.
        what: it is, for messages.
        refer: returns what to send in the place of a value that does not travel itself; None: it does.

    Raises:
        InputError: something in it is no plain data.
    """
    return _encode(_told(value, what, refer, 0))


def decode(data: bytes, resolve: Callable[[Reference], Any]) -> Any:
    """Return the nest; `resolve` returns what a reference stands for.

    Raises:
        InputError: the bytes are no nest.
    """
    try:
        return _read(_decode(data), resolve, 0)
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"what was received is no plain data: {error}") from None


def has_none(value: Any) -> bool:
    """Return whether there is a None anywhere in a nest."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return value is None or any(map(has_none, parts))


def _told(value: Any, what: str, refer: Callable[[Any], Reference | None], depth: int) -> Any:
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
        return [kind, *[_told(part, what, refer, depth + 1) for part in value]]
    if isinstance(value, dict):
        return [
            "d",
            *[
                [_told(key, what, refer, depth + 1), _told(part, what, refer, depth + 1)]
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
