"""Windows of elements with one key, and buckets of elements of similar length.

Source: `tf.data.Dataset.group_by_window` and `bucket_by_sequence_length`.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dtrain.data.grouping import Batched, call
from dtrain.data.node import UNKNOWN, Iteration, Node, spec_of_first
from dtrain.data.steps.padding import PaddedBatched
from dtrain.data.steps.windows import Listed
from dtrain.data.structure import Element, TensorSpec, map_arrays
from dtrain.errors import InputError, InvalidArgumentError


class Grouped(Node):
    """The results of a function of windows of elements with one key, each as soon as it is full.

    At the end come those that are not full, by their keys. `alike` is a node with elements of the same form,
    which is asked for the spec.
    """

    def __init__(
        self,
        source: Node,
        key_of: Callable[..., Any],
        reduce: Callable[[Any, Node], Node],
        size_of: Callable[[Any], Any],
        alike: Node | None = None,
        step: str = "group_by_window",
    ) -> None:
        """Begin.

        Args:
            source: the elements.
            key_of: returns the key of an element, an integer.
            reduce: makes a node of a key and a window.
            size_of: returns how many elements a full window of a key has.
            alike: as above.
            step: the name of the step, for messages.
        """
        self._source = source
        self._key_of = key_of
        self._reduce = reduce
        self._size_of = size_of
        self._alike = alike
        self.step = step
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Grouped(inputs[0], self._key_of, self._reduce, self._size_of, self, self.step)

    @cached_property
    def spec(self) -> Any:
        if self._alike is not None:
            return self._alike.spec
        for _, made in self._made((0,)):
            return made.spec
        return spec_of_first(self)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for number, made in self._made(iteration):
            yield from made.iterate((*iteration, number))

    def _made(self, iteration: Iteration) -> Iterator[tuple[int, Node]]:
        """Yield what the function makes of each window, numbered."""
        numbers = itertools.count()
        windows: dict[int, list[Element]] = {}
        for element in self._source.iterate(iteration):
            key = _integer(call(self._key_of, element), f"{self.step}: key_func")
            window = windows.setdefault(key, [])
            window.append(element)
            size = _integer(self._size_of(np.int64(key)), f"{self.step}: window_size")
            if size < 1:
                raise InputError(f"{self.step}: window_size: expected >= 1, found {size}")
            if len(window) >= size:
                yield next(numbers), self._reduce(np.int64(key), Listed(windows.pop(key)))
        for key in sorted(windows):
            yield next(numbers), self._reduce(np.int64(key), Listed(windows[key]))


def _integer(value: Any, where: str) -> int:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iub":
        raise InputError(f"{where}: expected one integer, found {value!r}")
    return int(array)


@dataclass(frozen=True)
class Buckets:
    """The rule of buckets by length: bucket b has elements of lengths from boundary b - 1 on, below b.

    Attributes:
        length_of: a function of an element.
        boundaries: rising.
        sizes: how many elements a batch of each bucket has; one more than boundaries.
        like: spec of the elements.
        padded_shapes, padding_values: as of `padded_batch`.
        to_boundary: whether axes of unknown length are filled up to the longest length of the bucket.
        pads: whether arrays are filled up at all.
        drop_remainder: whether smaller batches at the end are left out.
    """

    length_of: Callable[..., Any]
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    like: Any
    padded_shapes: Any
    padding_values: Any
    to_boundary: bool
    pads: bool
    drop_remainder: bool

    def __post_init__(self) -> None:
        rising = all(before < after for before, after in itertools.pairwise((0, *self.boundaries)))
        if not self.boundaries or not rising:
            raise InputError(
                "bucket_by_sequence_length: bucket_boundaries: expected rising numbers >= 1, found "
                f"{list(self.boundaries)}"
            )
        if len(self.sizes) != len(self.boundaries) + 1:
            raise InputError(
                f"bucket_by_sequence_length: expected {len(self.boundaries) + 1} bucket_batch_sizes, one "
                f"more than boundaries, found {len(self.sizes)}"
            )

    def key(self, *parts: Any) -> int:
        """Return the number of an element's bucket."""
        length = _integer(self.length_of(*parts), "bucket_by_sequence_length: element_length_func")
        if self.to_boundary and length >= self.boundaries[-1]:
            raise InvalidArgumentError(
                "bucket_by_sequence_length: pad_to_bucket_boundary: expected lengths below "
                f"{self.boundaries[-1]}, found {length}"
            )
        return bisect_right(self.boundaries, length)

    def size(self, key: Any) -> int:
        """Return how many elements a batch of a bucket has."""
        return self.sizes[int(key)]

    def batched(self, key: Any, window: Node) -> Node:
        """Return the only batch of a window."""
        size = self.size(key)
        if not self.pads:
            return Batched(window, size, self.drop_remainder)
        shapes = self.padded_shapes
        if self.to_boundary:
            longest = self.boundaries[int(key)] - 1
            shapes = map_arrays(
                lambda spec, given: _filled(spec, given, longest), self.like, _given(self.like, shapes)
            )
        return PaddedBatched(window, size, self.drop_remainder, shapes, self.padding_values)


@dataclass(frozen=True)
class _Shape:
    """Lengths of axes, in the place of one array in a structure."""

    lengths: tuple[int | None, ...]


def _given(like: Any, shapes: Any) -> Any:
    """Return the shape that is given for each array; without any, that of its spec."""
    if isinstance(like, dict):
        return {key: _given(like[key], None if shapes is None else shapes[key]) for key in like}
    if isinstance(like, tuple):
        parts = [None] * len(like) if shapes is None else shapes
        return tuple(_given(part, shape) for part, shape in zip(like, parts, strict=True))
    return _Shape(tuple(like.shape if shapes is None else shapes))


def _filled(spec: TensorSpec, given: _Shape, longest: int) -> list[int]:
    return [longest if length in (None, -1) else int(length or 0) for length in given.lengths]
