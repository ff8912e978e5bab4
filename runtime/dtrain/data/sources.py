# ruff: noqa: D102 -- the methods are those of `Node`, documented there
"""Sources of elements: arrays in memory, ranges of numbers, Python generators."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dtrain.data.node import Indices, Iteration, Node, spec_of_first
from dtrain.data.structure import Element, TensorSpec, arrays_of, as_arrays, cast, map_arrays, spec_of
from dtrain.errors import InputError


class Slices(Node):
    """The rows of arrays of equal length."""

    addressable = True

    def __init__(self, tensors: Any) -> None:
        self._arrays = as_arrays(tensors)
        shapes = [np.shape(array) for array in arrays_of(self._arrays)]
        if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise InputError(f"from_tensor_slices: expected arrays of one length, found shapes {shapes}.")
        self.cardinality = shapes[0][0]

    @property
    def spec(self) -> Any:
        return map_arrays(lambda each: TensorSpec(each.shape[1:], each.dtype), spec_of(self._arrays))

    def element(self, index: int, iteration: Iteration) -> Element:
        return map_arrays(lambda array: array[index], self._arrays)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        if isinstance(indices, range):
            rows = slice(indices.start, indices.stop, indices.step)
            return map_arrays(lambda array: array[rows], self._arrays)
        return map_arrays(lambda array: array[indices], self._arrays)


class Single(Node):
    """One element."""

    addressable = True
    cardinality = 1

    def __init__(self, tensors: Any) -> None:
        self._element = as_arrays(tensors)

    @property
    def spec(self) -> Any:
        return spec_of(self._element)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._element


class Range(Node):
    """The int64 numbers of a `range`."""

    addressable = True

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self.cardinality = len(numbers)

    @property
    def spec(self) -> Any:
        return TensorSpec((), "int64")

    def element(self, index: int, iteration: Iteration) -> Element:
        return np.int64(self._numbers[index])

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return self._numbers.start + np.asarray(indices, np.int64) * self._numbers.step


class Generated(Node):
    """Elements of a function's iterable, in a signature's dtypes if given; called once an iteration."""

    def __init__(self, generator: Callable[[], Iterable[Any]], signature: Any) -> None:
        self._generator = generator
        self._signature = signature

    @property
    def spec(self) -> Any:
        return spec_of_first(self) if self._signature is None else self._signature

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self._signature is None:
            return map(as_arrays, self._generator())
        return (cast(element, self._signature) for element in self._generator())
