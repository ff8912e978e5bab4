"""Plain data with arrays, as bytes: msgpack, an array as its dtype, shape and elements.

Nothing else is encoded or decoded.
"""

import math
from typing import Any

import msgspec
import numpy as np

ARRAY = 1
"""The type of msgpack's extension that holds an array."""
KINDS = "biuf"
"""The kinds of dtypes that an array may have: truth values, whole numbers, numbers."""


class _Head(msgspec.Struct, array_like=True, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    elements: bytes


def encode(plain: Any) -> bytes:
    """Return plain data as bytes; a tuple becomes a list. Raise a TypeError that names any other type."""
    try:
        return msgspec.msgpack.encode(plain, enc_hook=_encoded)
    except OverflowError as error:
        raise TypeError(f"a whole number of more than 64 bits: {error}") from None


def decode(content: bytes) -> Any:
    """Return the plain data of bytes, with new arrays; raise a ValueError for other bytes."""
    try:
        return msgspec.msgpack.decode(content, ext_hook=_decoded)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"no plain data: {error}") from None


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        head = _Head(value.dtype.str, value.shape, value.tobytes())
        return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(head))
    raise TypeError(f"a {type(value).__name__}" + (f" of {value.dtype}" if hasattr(value, "dtype") else ""))


def _decoded(code: int, data: memoryview) -> Any:
    if code != ARRAY:
        raise ValueError(f"an extension of type {code}")
    head = msgspec.msgpack.decode(data, type=_Head)
    dtype = np.dtype(head.dtype)
    if dtype.kind not in KINDS or math.prod(head.shape) * dtype.itemsize != len(head.elements):
        raise ValueError(
            f"an array of {head.dtype[:20]} and shape {head.shape} in {len(head.elements)} bytes"
        )
    return np.frombuffer(head.elements, dtype).reshape(head.shape).copy()
