# ruff: noqa: D102 -- the methods are those of `Node`, documented there
"""Steps that look into elements or regroup them: map, filter, batch, unbatch, rebatch."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from dtrain.data.node import INFINITE, UNKNOWN, Derived, Iteration, Node, RowsOf, spec_of_first
from dtrain.data.sources import Slices
from dtrain.data.structure import Element, TensorSpec, arrays_of, as_arrays, concatenate, map_arrays, stack
from dtrain.errors import InputError


def call(function: Callable[..., Any], element: Element) -> Any:
    """Return `function` of an element; a tuple's parts are its arguments."""
    return function(*element) if isinstance(element, tuple) else function(element)


class Mapped(Derived):
    """A function of each element."""

    def __init__(self, source: Node, function: Callable[..., Any]) -> None:
        super().__init__(source)
        self._function = function

    @property
    def spec(self) -> Any:
        return spec_of_first(self)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return (as_arrays(call(self._function, element)) for element in self._source.iterate(iteration))

    def element(self, index: int, iteration: Iteration) -> Element:
        return as_arrays(call(self._function, self._source.element(index, iteration)))


class Filtered(Node):
    """The elements for which a predicate holds."""

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        self._source = source
        self._predicate = predicate
        self.cardinality = source.cardinality if source.cardinality in (0, INFINITE) else UNKNOWN

    @property
    def spec(self) -> Any:
        return self._source.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return (element for element in self._source.iterate(iteration) if call(self._predicate, element))


class Batched(Derived):
    """Groups of `size` elements, stacked; the last may be smaller, or is dropped."""

    def __init__(self, source: Node, size: int, drop_remainder: bool) -> None:
        if size < 1:
            raise InputError(f"batch: expected a size >= 1, found {size}.")
        super().__init__(source)
        self._size = size
        self._drop = drop_remainder
        self.batch_size = size
        if self.cardinality >= 0:
            self.cardinality = self.cardinality // size if drop_remainder else -(-self.cardinality // size)

    @property
    def spec(self) -> Any:
        length = self._size if self._drop else None
        return map_arrays(lambda each: TensorSpec((length, *each.shape), each.dtype), self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            yield from super().iterate(iteration)
            return
        elements = self._source.iterate(iteration)
        while group := list(islice(elements, self._size)):
            if len(group) == self._size or not self._drop:
                yield stack(group)

    def element(self, index: int, iteration: Iteration) -> Element:
        start = index * self._size
        stop = (index + 1) * self._size
        if self._source.cardinality >= 0:
            stop = min(stop, self._source.cardinality)
        return self._source.elements(range(start, stop), iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        start = index * self._size
        size = self._size
        if self._source.cardinality >= 0:
            size = min(size, self._source.cardinality - start)
        wanted = rows(size)
        if not wanted:
            return None, size
        return self._source.elements(range(start + wanted.start, start + wanted.stop), iteration), size


class Unbatched(Node):
    """The rows of each element."""

    def __init__(self, source: Node) -> None:
        self._source = source
        self.cardinality = source.cardinality if source.cardinality in (0, INFINITE) else UNKNOWN

    @property
    def spec(self) -> Any:
        return map_arrays(lambda each: TensorSpec(each.shape[1:], each.dtype), self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for element in self._source.iterate(iteration):
            rows = Slices(element)
            for index in range(rows.cardinality):
                yield rows.element(index, iteration)


class Rebatched(Node):
    """The rows of a stream of batches, in batches of these sizes in turn, across the source's boundaries."""

    def __init__(self, source: Node, sizes: Sequence[int], drop_remainder: bool) -> None:
        if not sizes or min(sizes) < 0 or max(sizes) == 0:
            raise InputError(f"rebatch: expected sizes >= 0, not all of them 0, found {list(sizes)}.")
        self._source = source
        self._sizes = sizes
        self._drop = drop_remainder
        self.cardinality = INFINITE if source.cardinality == INFINITE else UNKNOWN

    @property
    def spec(self) -> Any:
        length = self._sizes[0] if self._drop and len(set(self._sizes)) == 1 else None
        return map_arrays(lambda each: TensorSpec((length, *each.shape[1:]), each.dtype), self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        sizes = cycle(self._sizes)
        size = next(sizes)
        rest = None
        for batch in self._source.iterate(iteration):
            rest = batch if rest is None else concatenate([rest, batch])
            while len(arrays_of(rest)[0]) >= size:
                yield map_arrays(lambda array: array[:size], rest)  # noqa: B023 -- called at once
                rest = map_arrays(lambda array: array[size:], rest)  # noqa: B023 -- called at once
                size = next(sizes)
        if rest is not None and len(arrays_of(rest)[0]) and not self._drop:
            yield rest
