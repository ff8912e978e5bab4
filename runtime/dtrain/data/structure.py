"""Elements of a dataset: arrays, or nests of tuples and dicts of such; their specs, and elements as bytes.

Bytes are for helper processes and files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.formats import plain_data

TEXT = (bytes, str)
Element = Any
"""An array, bytes or text, or a tuple or dict of elements."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of an array in every element; an axis whose length varies is None.

    Args:
        shape: a tuple; an axis whose length varies is None.
        dtype: numpy's dtype or its name, or ``string`` for bytes and text.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    """numpy's name of it, or `string` for bytes and text; dtypes and types are turned into that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype != "string":
            object.__setattr__(self, "dtype", _dtype_name(np.empty(0, self.dtype)))


def map_arrays(function: Callable[..., Any], first: Element, *others: Element) -> Element:
    """Return an element of `first`'s structure: `function` of the arrays at the same place in all."""
    if isinstance(first, tuple):
        if not others:
            return tuple([map_arrays(function, part) for part in first])
        return tuple([map_arrays(function, *parts) for parts in zip(first, *others, strict=True)])
    if isinstance(first, dict):
        return {
            key: map_arrays(function, part, *(other[key] for other in others)) for key, part in first.items()
        }
    return function(first, *others)


def arrays_of(element: Element) -> list[Any]:
    if isinstance(element, tuple):
        return [array for part in element for array in arrays_of(part)]
    if isinstance(element, dict):
        return [array for part in element.values() for array in arrays_of(part)]
    return [element]


def as_arrays(element: Any) -> Element:
    """Return the element with arrays for numbers and lists.

    Bytes and text stay, lists of such become arrays of objects. Python's floats become float32.
    """
    return map_arrays(_as_array, element)


def stack(elements: Sequence[Element]) -> Element:
    try:
        return map_arrays(_stacked, *elements)
    except ValueError as error:
        shapes = sorted({str(map_arrays(np.shape, element)) for element in elements})
        raise InputError(
            f"batch: expected elements of one shape, found {' and '.join(shapes[:3])}."
        ) from error


def concatenate(elements: Sequence[Element]) -> Element:
    return (
        elements[0] if len(elements) == 1 else map_arrays(lambda *arrays: np.concatenate(arrays), *elements)
    )


def spec_of(element: Element) -> Any:
    return map_arrays(lambda array: TensorSpec(np.shape(array), _dtype_name(array)), element)


def with_open_batches(spec: Any) -> Any:
    return map_arrays(
        lambda each: TensorSpec((None, *each.shape[1:]), each.dtype) if each.shape else each, spec
    )


def empty_batch(spec: Any) -> Element:
    """Return a batch without examples for a structure of `TensorSpec`s.

    Axes of open length are 0 long; where all lengths are known the first one is taken as that of examples.
    """

    def empty(spec: TensorSpec) -> Any:
        shape = [length or 0 for length in spec.shape]
        if shape and None not in spec.shape:
            shape[0] = 0
        return np.zeros(shape, object if spec.dtype == "string" else spec.dtype)

    return map_arrays(empty, spec)


def _as_array(value: Any) -> Any:
    if isinstance(value, TEXT):
        return value
    if value is None:
        raise InputError("dataset: expected elements of arrays, found None; does a function lack its return?")
    try:
        array = np.asarray(value)
    except ValueError as error:
        expected = "an array, or nested lists of equal lengths"
        raise InputError(f"dataset: expected {expected}, found {type(value).__name__}: {error}") from None
    if array.dtype.kind in "mMV":
        raise InputError(
            f"dataset: expected numbers or text, found {array.dtype}; array.astype('int64') counts"
        )
    if array.dtype.kind in "SU":
        return np.array(value, object)  # an array of numpy's bytes would cut zero bytes off
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    of_python = type(first) in (bool, int, float)  # others are arrays or numbers of some library
    return array.astype(np.float32) if of_python and array.dtype == np.float64 else array


def _stacked(*arrays: Any) -> Any:
    return np.array(arrays, object) if isinstance(arrays[0], bytes | str) else np.stack(arrays)


def _dtype_name(array: Any) -> str:
    dtype = np.asarray(array).dtype
    return "string" if dtype.kind in "SUO" else dtype.name


def encode_element(element: Element, purpose: str = "map with processes") -> bytes:
    """Return an element as bytes; an `InputError`, which names the purpose, refuses other objects."""
    try:
        return plain_data.encode(element, kinds=None)
    except TypeError as error:
        raise InputError(f"{purpose}: expected arrays, text, bytes and numbers, found {error}") from None


decode_element = plain_data.decode
