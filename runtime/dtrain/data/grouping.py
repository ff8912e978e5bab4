"""Steps that look into elements or regroup them: map, filter, batch, unbatch."""

import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from dtrain.data.chance import addressed, generator_of
from dtrain.data.node import (
    INFINITE,
    UNKNOWN,
    Derived,
    FromEach,
    Indices,
    Iteration,
    Node,
    OneSource,
    RowsOf,
    runs_of,
    spec_of_first,
)
from dtrain.data.prefetching.processes import Helpers
from dtrain.data.prefetching.threads import mapped_in_order
from dtrain.data.prefetching.tuning import AUTOTUNE
from dtrain.data.sources import Slices
from dtrain.data.structure import (
    Element,
    TensorSpec,
    arrays_of,
    as_arrays,
    map_arrays,
    stack,
    with_open_batches,
)
from dtrain.errors import InputError


def call(function: Callable[..., Any], element: Element) -> Any:
    return function(*element) if isinstance(element, tuple) else function(element)


class Mapped(Derived):
    """A function of each element.

    Attributes:
        parallel_calls: how many threads may call it at once; AUTOTUNE: as many as are useful; None: one.
        seed: of the generator that the function gets as last argument; None: it gets none.
        helpers: the processes in which the function is called; None: it is called in this one.
    """

    computed = frozenset({"helpers"})

    def __init__(
        self,
        source: Node,
        function: Callable[..., Any],
        parallel_calls: int | None = None,
        seed: int | None = None,
        helpers: Helpers | None = None,
    ) -> None:
        super().__init__(source)
        self._function = function
        self.parallel_calls = parallel_calls
        self.seed = seed
        self.helpers = helpers

    @classmethod
    def in_processes(
        cls, source: Node, function: Callable[..., Any], parallel_calls: int, seed: int | None
    ) -> "Mapped":
        helpers = Helpers(partial(_of_request, function, seed), threads_for(parallel_calls))
        return cls(source, function, parallel_calls, seed, helpers)

    @cached_property
    def spec(self) -> Any:
        """The first element's; over batches of which the last may be smaller the first axis is open."""
        if self.alike is not None:
            return self.alike.spec
        spec = spec_of_first(Mapped(self._source, self._function, seed=self.seed))
        of_source = arrays_of(self._source.spec) if self.batch_size else []
        return with_open_batches(spec) if any(each.shape[:1] == (None,) for each in of_source) else spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self.behind(0, iteration)[1]

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        found, elements = self._source.behind(number, iteration)
        numbered = enumerate(elements, found)
        if not self.parallel_calls:
            return found, (self._computed(element, iteration, index) for index, element in numbered)
        threads = threads_for(self.parallel_calls)
        compute = lambda each: self._computed(each[1], iteration, each[0])  # noqa: E731
        return found, mapped_in_order(compute, numbered, threads)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._computed(self._source.element(index, iteration), iteration, index)

    def _computed(self, element: Element, iteration: Iteration, index: int) -> Element:
        if self.helpers is not None:
            return self.helpers((element, iteration, index))
        return _of_request(self._function, self.seed, (element, iteration, index))

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        elements = zip(indices, self._source.each(indices, iteration), strict=True)
        return [self._computed(element, iteration, int(index)) for index, element in elements]


def _of_request(function: Callable[..., Any], seed: int | None, request: Any) -> Element:
    element, iteration, index = request
    with addressed(seed, iteration, index):
        if seed is None:
            return as_arrays(call(function, element))
        parts = element if isinstance(element, tuple) else (element,)
        return as_arrays(function(*parts, generator_of(seed, iteration, index)))


def threads_for(parallel_calls: int) -> int:
    return len(os.sched_getaffinity(0)) if parallel_calls == AUTOTUNE else parallel_calls


class Filtered(OneSource):
    """The elements for which a predicate holds."""

    keeps_batches = True

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        super().__init__(source)
        self.predicate = predicate
        self.batch_size = source.batch_size
        self.cardinality = source.cardinality if source.cardinality in (0, INFINITE) else UNKNOWN

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return (element for element in self._source.iterate(iteration) if call(self.predicate, element))


class Batched(Derived):
    """Groups of `size` elements, stacked; all batches hold `rows` elements of the source."""

    def __init__(self, source: Node, size: int, drop_remainder: bool) -> None:
        if not (isinstance(size, int | np.integer) and size >= 1):
            raise InputError(f"batch: expected a whole number >= 1 as size, found {size!r}.")
        super().__init__(source)
        self._size = size
        self.drops_remainder = drop_remainder
        self.batch_size = size
        self.rows = source.cardinality
        if self.cardinality >= 0:
            self.rows -= self.rows % size if drop_remainder else 0
            self.cardinality = self.cardinality // size if drop_remainder else -(-self.cardinality // size)

    @property
    def spec(self) -> Any:
        length = self._size if self.drops_remainder else None
        return map_arrays(lambda each: TensorSpec((length, *each.shape), each.dtype), self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            return super().iterate(iteration)
        return self._groups(self._source.iterate(iteration))

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        found, elements = self._source.behind(number * self._size, iteration)
        whole, rest = divmod(found, self._size)
        return whole + (rest > 0 and not self.drops_remainder), self._groups(elements)

    def _groups(self, elements: Iterator[Element]) -> Iterator[Element]:
        while group := list(islice(elements, self._size)):
            if len(group) == self._size or not self.drops_remainder:
                yield self._joined(group)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.elements(self._numbers(index), iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        numbers = self._numbers(index)
        wanted = rows(len(numbers))
        within = numbers[wanted.start : wanted.stop]
        return (self._source.elements(within, iteration) if wanted else None), len(numbers)

    def _numbers(self, index: int) -> range:
        stop = (index + 1) * self._size
        if self._source.cardinality >= 0:
            stop = min(stop, self._source.cardinality)
        return range(index * self._size, stop)

    def _joined(self, elements: list[Element]) -> Element:
        return stack(elements)


def rows_in_a_row(node: Node) -> int:
    """Return how many rows batches have that can be addressed by row, or UNKNOWN.

    That takes batches of one size, but for the last one behind `batch` itself.
    """
    if not (node.addressable and node.batch_size):
        return UNKNOWN
    if isinstance(node, Batched):
        return node.rows
    if not node.keeps_batches or len(node.inputs) != 1:
        return UNKNOWN
    rows = rows_in_a_row(node.inputs[0])
    if rows == UNKNOWN or (rows >= 0 and rows % node.batch_size):
        return UNKNOWN
    return node.cardinality * node.batch_size if node.cardinality >= 0 else node.cardinality


def may_be_rows_in_a_row(node: Node) -> bool:
    if isinstance(node, Batched):
        return True
    while node.keeps_batches and len(node.inputs) == 1:
        node = node.inputs[0]
    return isinstance(node, Batched) and node.drops_remainder


def rows_between(node: Node, rows: range, iteration: Iteration) -> list[Element]:
    """Return rows that follow each other, as views of parts of batches; see `rows_in_a_row`."""
    size = node.batch_size
    pieces = []
    for number in range(rows.start // size, -(-rows.stop // size)):
        within = range(max(rows.start - number * size, 0), min(rows.stop - number * size, size))
        piece, _ = node.part(number, iteration, lambda _, within=within: within)  # type: ignore[misc]
        pieces.append(piece)
    return pieces


class Unbatched(FromEach, OneSource):
    """The rows of each element."""

    def __init__(self, source: Node) -> None:
        super().__init__(source)
        self.cardinality = rows_in_a_row(source)
        self.addressable = self.cardinality != UNKNOWN
        if not self.addressable and source.cardinality in (0, INFINITE):
            self.cardinality = source.cardinality

    @property
    def spec(self) -> Any:
        return map_arrays(lambda each: TensorSpec(each.shape[1:], each.dtype), self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for element in self._source.iterate(iteration):
            yield from Slices(element).iterate(iteration)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        pieces: list[Element] = []
        for start, end in runs_of(indices):
            first = int(indices[start])
            pieces += rows_between(self._source, range(first, first + end - start), iteration)
        return [row for piece in pieces for row in Slices(piece).iterate(iteration)]
