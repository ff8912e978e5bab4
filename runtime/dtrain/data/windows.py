"""Steps that look at several elements: windows, groups by key, padded batches, a running state.

The end may be one that an element tells. Source: `tf.data.Dataset.window`, `scan`, `take_while`, `unique`,
`group_by_window`, `bucket_by_sequence_length` and `padded_batch`.
"""

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

import msgspec
import numpy as np

from dtrain.data.grouping import Batched, call
from dtrain.data.node import UNKNOWN, Iteration, Node, OneSource, RowsOf, rows_of, spec_of_first
from dtrain.data.structure import Element, TensorSpec, arrays_of, as_arrays, map_arrays
from dtrain.errors import InputError, InvalidArgumentError
from dtrain.types import Array


class Listed(Node):
    """Elements in memory."""

    addressable = True

    def __init__(self, elements: Sequence[Element]) -> None:
        self._elements = elements
        self.cardinality = len(elements)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._elements[index]


class Windowed(OneSource):
    """Windows of `size` elements, each a dataset; of elements of several arrays a dataset for each array.

    Elements of a window are `stride` apart, and windows `shift`; `wrap` makes a dataset of a node.
    """

    def __init__(
        self,
        source: Node,
        size: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        wrap: Callable[[Node], Any],
    ) -> None:
        if min(size, shift, stride) < 1:
            raise InputError(
                f"window: expected size, shift and stride >= 1, found {size}, {shift} and {stride}"
            )
        super().__init__(source)
        self._size, self._shift, self._stride = size, shift, stride
        self._drop = drop_remainder
        self._wrap = wrap
        self._span = (size - 1) * stride + 1
        count = source.cardinality
        if count >= 0:
            count = max(0, count - self._span + 1) if drop_remainder else count
            count = -(-count // shift)
        self.cardinality = count

    @property
    def spec(self) -> Any:
        raise InputError(
            "element_spec: the elements of window() are datasets; join them by flat_map, for example "
            "flat_map(lambda window: window.batch(size))"
        )

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        elements = self._source.iterate(iteration)
        held: deque[Element] = deque()
        while True:
            held.extend(islice(elements, self._span - len(held)))
            window = list(islice(held, 0, self._span, self._stride))
            if not window or (self._drop and len(window) < self._size):
                return
            yield map_arrays(lambda *arrays: self._wrap(Listed(arrays)), *window)
            for _ in range(min(self._shift, len(held))):
                held.popleft()
            for _ in islice(elements, max(0, self._shift - self._span)):
                pass  # windows that are further apart than they are long leave elements out


class TakenWhile(OneSource):
    """The elements before the first one for which a predicate is false."""

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        super().__init__(source)
        self._predicate = predicate
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return takewhile(
            lambda element: bool(call(self._predicate, element)), self._source.iterate(iteration)
        )


class Scanned(OneSource):
    """A function of a running state and each element, which gives the next state and an element."""

    def __init__(self, source: Node, state: Any, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(source)
        self._state = state
        self._function = function
        self.cardinality = source.cardinality

    @cached_property
    def spec(self) -> Any:
        return spec_of_first(self) if self.alike is None else self.alike.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        state = as_arrays(self._state)
        for element in self._source.iterate(iteration):
            result = self._function(state, element)
            if not isinstance(result, tuple) or len(result) != 2:
                raise InputError(
                    "scan: expected a function that returns (new_state, output), found "
                    f"{type(result).__name__}"
                )
            state, output = result
            yield as_arrays(output)


class Grouped(OneSource):
    """The results of a function of windows of elements with one key, each as soon as it is full.

    At the end come those that are not full, by their keys. `step` is named in messages.
    """

    def __init__(
        self,
        source: Node,
        key_of: Callable[..., Any],
        reduce: Callable[[Any, Node], Node],
        size_of: Callable[[Any], Any],
        step: str = "group_by_window",
    ) -> None:
        super().__init__(source)
        self._key_of = key_of
        self._reduce = reduce
        self._size_of = size_of
        self.step = step
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    @cached_property
    def spec(self) -> Any:
        if self.alike is not None:
            return self.alike.spec
        for _, made in self._made((0,)):
            return made.spec
        return spec_of_first(self)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for number, made in self._made(iteration):
            yield from made.iterate((*iteration, number))

    def _made(self, iteration: Iteration) -> Iterator[tuple[int, Node]]:
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


class Buckets(msgspec.Struct, frozen=True):
    """The rule of buckets by length: bucket b has elements of lengths from boundary b - 1 on, below b.

    Attributes:
        like: spec of the elements; needed where axes are filled up `to_boundary`.
        to_boundary: whether axes of unknown length are filled up to the longest length of the bucket.
        pads: whether arrays are filled up at all.
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
        length = _integer(self.length_of(*parts), "bucket_by_sequence_length: element_length_func")
        if self.to_boundary and length >= self.boundaries[-1]:
            raise InvalidArgumentError(
                "bucket_by_sequence_length: pad_to_bucket_boundary: expected lengths below "
                f"{self.boundaries[-1]}, found {length}"
            )
        return bisect_right(self.boundaries, length)

    def size(self, key: Any) -> int:
        return self.sizes[int(key)]

    def batched(self, key: Any, window: Node) -> Node:
        size = self.size(key)
        if not self.pads:
            return Batched(window, size, self.drop_remainder)
        shapes = self.padded_shapes
        if self.to_boundary:
            longest = self.boundaries[int(key)] - 1

            def filled(spec: TensorSpec, padding: Padding) -> list[int]:
                lengths = spec.shape if padding.lengths is None else padding.lengths
                return [longest if length is None else length for length in lengths]

            shapes = map_arrays(filled, self.like, paddings_of(self.like, shapes, None))
        return PaddedBatched(window, size, self.drop_remainder, shapes, self.padding_values)


class Padding(msgspec.Struct, frozen=True):
    """How the arrays at one place of all elements are filled up.

    A length of None is the longest of a batch; without `lengths` all are. A value of None is 0 or no text.
    """

    lengths: tuple[int | None, ...] | None
    value: Any

    def stacked(self, *arrays: Any) -> Array:
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
    """Groups of `size` elements, filled up to one shape and stacked; one value may be for all arrays."""

    def __init__(self, source: Node, size: int, drop_remainder: bool, shapes: Any, values: Any) -> None:
        super().__init__(source, size, drop_remainder)
        self._shapes = shapes
        self._values = values

    @property
    def spec(self) -> Any:
        source = self._source.spec
        length = self._size if self.drops_remainder else None

        def padded(each: TensorSpec, padding: Padding) -> TensorSpec:
            lengths = padding.lengths if padding.lengths is not None else (None,) * len(each.shape)
            return TensorSpec((length, *lengths), each.dtype)

        return map_arrays(padded, source, paddings_of(source, self._shapes, self._values))

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._joined(self._source.each(self._numbers(index), iteration))

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        return rows_of(self.element(index, iteration), rows)  # the longest of the whole batch counts

    def _joined(self, elements: list[Element]) -> Element:
        paddings = paddings_of(elements[0], self._shapes, self._values)
        return map_arrays(lambda padding, *arrays: padding.stacked(*arrays), paddings, *elements)


def paddings_of(like: Any, shapes: Any, values: Any) -> Any:
    if isinstance(like, dict):
        return {key: paddings_of(like[key], _at(shapes, key), _at(values, key)) for key in like}
    if isinstance(like, tuple):
        for given in (shapes, values):
            if isinstance(given, list | tuple) and len(given) != len(like):
                raise InputError(
                    f"padded_batch: expected {len(like)} shapes or values, one for each part of an element, "
                    f"found {given!r}"
                )
        return tuple(paddings_of(part, _at(shapes, i), _at(values, i)) for i, part in enumerate(like))
    if shapes is None:
        return Padding(None, values)
    lengths = [shapes] if isinstance(shapes, int) else list(shapes)
    return Padding(tuple(None if length in (None, -1) else int(length) for length in lengths), values)


def _at(given: Any, key: Any) -> Any:
    """Return what is given for a part; a single value, or None, is for all parts."""
    return given[key] if isinstance(given, dict | list | tuple) else given


class Distinct(OneSource):
    """The first of equal elements; all that have come are remembered."""

    def __init__(self, source: Node) -> None:
        super().__init__(source)
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        seen: set[Hashable] = set()
        for element in self._source.iterate(iteration):
            key = tuple(map(_key, arrays_of(element)))
            if key not in seen:
                seen.add(key)
                yield element


def _key(value: Any) -> Hashable:
    array = np.asarray(value)
    content = tuple(array.reshape(-1).tolist()) if array.dtype.hasobject else array.tobytes()
    return array.dtype.str, array.shape, content
