"""The conversion of a caller's data to float32 arrays."""

from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array, Shape

FLOAT32 = np.dtype(np.float32)


def as_float32(x: Any, where: str) -> Array:
    """Return `x` as float32, uncopied where it is float32; `where` names the reader in the `InputError`."""
    array = np.asarray(x)
    if array.dtype == FLOAT32:
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"{where}: expected numbers, found dtype {array.dtype}")
    return array.astype(np.float32)


def shape_text(shape: Shape) -> str:
    """Return ``(batch, 28, 28, 1)`` for the example shape ``(28, 28, 1)``; unknown lengths read ``None``."""
    return f"({', '.join(['batch', *map(str, shape)])})"


def fits(shape: tuple[int, ...], expected: Shape) -> bool:
    """None in `expected` stands for any length."""
    return shape == expected or (
        len(shape) == len(expected) and all(e in (None, s) for s, e in zip(shape, expected, strict=True))
    )


def of_rank(array: Array, expected: Shape) -> Array:
    """Add or remove a last axis of length 1 where only so a batch's examples fit `expected`, as in Keras."""
    shape = array.shape[1:]
    if array.ndim == 0 or fits(shape, expected):
        return array
    if expected[-1:] == (1,) and fits(shape, expected[:-1]):
        return array[..., np.newaxis]
    return array[..., 0] if shape[-1:] == (1,) and fits(shape[:-1], expected) else array


def without_last_axis(array: Array, rank: int) -> Array:
    """Return an array of one axis more than `rank` without its last axis, if that has length 1."""
    return array[..., 0] if array.ndim == rank + 1 and array.shape[-1] == 1 else array
