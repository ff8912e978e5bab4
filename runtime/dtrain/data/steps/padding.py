"""Batches of arrays of different lengths, which are filled up. Source: `tf.data.Dataset.padded_batch`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dtrain.data.grouping import Batched
from dtrain.data.node import Iteration, Node, RowsOf, rows_of
from dtrain.data.structure import Element, TensorSpec, map_arrays
from dtrain.errors import InputError
from dtrain.types import Array


@dataclass(frozen=True)
class Padding:
    """How the arrays at one place of all elements are filled up.

    Attributes:
        lengths: of each axis; None: as long as the longest of a batch. No lengths at all: None for all axes.
        value: what they are filled with; None: 0, and nothing for text.
    """

    lengths: tuple[int | None, ...] | None
    value: Any

    def stacked(self, *arrays: Any) -> Array:
        """Return the arrays, filled up, along a new first axis."""
        shapes = [np.shape(array) for array in arrays]
        lengths = self.lengths if self.lengths is not None else (None,) * len(shapes[0])
        if {len(shape) for shape in shapes} != {len(lengths)}:
            raise InputError(
                f"padded_batch: expected arrays with {len(lengths)} axes, as padded_shapes has, found shapes "
                f"{sorted(set(shapes))}"
            )
        longest = [max(lengths) for lengths in zip(*shapes, strict=True)]
        for length, found in zip(lengths, longest, strict=True):
            if length is not None and found > length:
                raise InputError(
                    f"padded_batch: expected at most {length} along an axis, found {found}; give None in "
                    "padded_shapes for the longest of each batch"
                )
        form = [found if length is None else length for length, found in zip(lengths, longest, strict=True)]
        first = np.asarray(arrays[0])
        dtype = object if first.dtype.kind in "OSU" else first.dtype
        value = self.value if self.value is not None else b"" if dtype is object else 0
        filled = np.full((len(arrays), *form), value, dtype)
        for row, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
            place: tuple[int | slice, ...] = (row, *(slice(length) for length in shape))
            filled[place] = array
        return filled


class PaddedBatched(Batched):
    """Groups of `size` elements, filled up to one shape and stacked."""

    def __init__(self, source: Node, size: int, drop_remainder: bool, shapes: Any, values: Any) -> None:
        """Begin.

        Args:
            source: of elements of which each array has the same number of axes in all.
            size: of a batch.
            drop_remainder: whether a smaller last batch is left out.
            shapes: structure of lengths, in the place of each array; None: the longest along every axis.
            values: structure of numbers, or one for all.
        """
        super().__init__(source, size, drop_remainder)
        self._shapes = shapes
        self._values = values

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return PaddedBatched(inputs[0], self._size, self.drops_remainder, self._shapes, self._values)

    @property
    def spec(self) -> Any:
        source = self._source.spec
        length = self._size if self.drops_remainder else None

        def padded(each: TensorSpec, padding: Padding) -> TensorSpec:
            lengths = padding.lengths if padding.lengths is not None else (None,) * len(each.shape)
            return TensorSpec((length, *lengths), each.dtype)

        return map_arrays(padded, source, self._paddings(source))

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        elements = self._source.iterate(iteration)
        while group := list(islice(elements, self._size)):
            if len(group) == self._size or not self.drops_remainder:
                yield self._stacked(group)

    def element(self, index: int, iteration: Iteration) -> Element:
        stop = (index + 1) * self._size
        if self._source.cardinality >= 0:
            stop = min(stop, self._source.cardinality)
        rows = range(index * self._size, stop)
        return self._stacked([self._source.element(row, iteration) for row in rows])

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        return rows_of(self.element(index, iteration), rows)  # the longest of the whole batch counts

    def _stacked(self, elements: Sequence[Element]) -> Element:
        paddings = self._paddings(elements[0])
        return map_arrays(lambda padding, *arrays: padding.stacked(*arrays), paddings, *elements)

    def _paddings(self, like: Any) -> Any:
        """Return a structure of `Padding`s in the form of elements or of their spec."""
        return _paired(like, self._shapes, self._values)


def _paired(like: Any, shapes: Any, values: Any) -> Any:
    if isinstance(like, dict):
        return {key: _paired(like[key], _at(shapes, key), _at(values, key)) for key in like}
    if isinstance(like, tuple):
        for given in (shapes, values):
            if isinstance(given, list | tuple) and len(given) != len(like):
                raise InputError(
                    f"padded_batch: expected {len(like)} shapes or values, one for each part of an element, "
                    f"found {given!r}"
                )
        return tuple(_paired(part, _at(shapes, i), _at(values, i)) for i, part in enumerate(like))
    if shapes is None:
        return Padding(None, values)
    lengths = [shapes] if isinstance(shapes, int) else list(shapes)
    return Padding(tuple(None if length in (None, -1) else int(length) for length in lengths), values)


def _at(given: Any, key: Any) -> Any:
    """Return what is given for a part; a single value, or None, is for all parts."""
    return given[key] if isinstance(given, dict | list | tuple) else given
