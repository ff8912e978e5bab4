"""One step of an input pipeline: the interface that sources and transformations share.

A node is *addressable* if its element k can be computed without the ones before it. A replica then computes
only the batches that it is dealt, and a pipeline restarts at any position at once. Other nodes are read from
the start.

An `iteration` counts how often the dataset, and each `repeat` inside it, has been gone through before: a
tuple of counts from the outside in. All random order follows from it and a seed, and is the same in all
replicas.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, Self

import numpy as np

from dtrain.data.structure import Element, arrays_of, concatenate, map_arrays, spec_of, stack
from dtrain.errors import NoElementError, NotBatchedError

INFINITE = -1
"""The cardinality of a dataset without end."""

UNKNOWN = -2
"""The cardinality of a dataset of which only reading it tells."""

Iteration = tuple[int, ...]
Indices = range | np.ndarray[Any, np.dtype[np.int64]]


class Node:
    """Base of all steps.

    Attributes:
        cardinality: a number of elements, INFINITE or UNKNOWN.
        batch_size: how many elements `batch` puts into each; 0 where that is not known.
        keeps_batches: whether every element is one of the source's, unchanged.
        files: the paths of files that it reads itself.
        computed: names of attributes that follow from the others, so that they tell no pipelines apart.
    """

    addressable = False
    keeps_batches = False
    cardinality = UNKNOWN
    batch_size = 0
    files: Sequence[str] = ()
    computed: frozenset[str] = frozenset()

    @property
    def inputs(self) -> "tuple[Node, ...]":
        return ()

    def with_inputs(self, inputs: "Sequence[Node]") -> "Node":
        """Return the same step on other inputs; a source is its own."""
        return self

    @property
    def spec(self) -> Any:
        """A structure of `TensorSpec`s that every element fits: the first one's if nothing else says it."""
        return spec_of_first(self)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for index in count() if self.cardinality == INFINITE else range(self.cardinality):
            yield self.element(index, iteration)

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        """Return how many of the first `number` elements there are, and an iterator over those behind them.

        Steps that know what their elements are made of leave these out as they are in the source.
        """
        elements = self.iterate(iteration)
        return sum(1 for _ in islice(elements, number)), elements

    def element(self, index: int, iteration: Iteration) -> Element:
        raise NotImplementedError

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        """Return elements of an addressable node; those of a file that are neighbours are read at once."""
        return [self.element(int(index), iteration) for index in indices]

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return stack(self.each(indices, iteration))

    @property
    def order_varies(self) -> bool:
        return any(node.order_varies for node in self.inputs)

    def part(self, index: int, iteration: Iteration, rows: "RowsOf") -> tuple[Element | None, int]:
        """Return rows of element `index`, a batch, and how many it has in all; None if there is no row.

        Where batches are made of addressable elements only the rows that are asked for are computed.
        """
        return rows_of(self.element(index, iteration), rows)


class OnInputs(Node):
    """Base of steps on other nodes, their first argument; the others are kept to make the step anew.

    `alike` is the step from which this one was made by `with_inputs`. Steps whose spec is learned from the
    first element ask it, because other inputs may have no element.
    """

    alike: Node | None = None
    _others: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        step = super().__new__(cls)
        step._others = arguments[1:], named
        return step

    def _made_anew(self, first: Any) -> Self:
        others, named = self._others
        step = type(self)(first, *others, **named)
        step.alike = self.alike or self
        return step

    @property
    def spec(self) -> Any:
        return self.inputs[0].spec


class OneSource(OnInputs):
    """Base of steps on one source."""

    def __init__(self, source: Node) -> None:
        self._source = source

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return self._made_anew(inputs[0])


class OfSeveral(OnInputs):
    """Base of steps on several nodes that all have the spec of the first one."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self._nodes

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return self._made_anew(inputs)


class Derived(OneSource):
    """Base of steps on one source, which have its length and batches unless they say otherwise."""

    def __init__(self, source: Node) -> None:
        super().__init__(source)
        self.batch_size = source.batch_size
        self.addressable = source.addressable
        self.cardinality = source.cardinality


class Reordered(Derived):
    """Base of steps that give elements of their source by other numbers, or in other iterations."""

    keeps_batches = True

    def _locate(self, index: int, iteration: Iteration) -> tuple[int, Iteration]:
        return index, iteration

    def _places(self, indices: Indices, iteration: Iteration) -> Iterable[tuple[Indices, Iteration]]:
        return [(indices, iteration)]

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.element(*self._locate(index, iteration))

    def part(self, index: int, iteration: Iteration, rows: "RowsOf") -> tuple[Element | None, int]:
        return self._source.part(*self._locate(index, iteration), rows)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return concatenate([self._source.elements(*place) for place in self._places(indices, iteration)])

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        places = self._places(indices, iteration)
        return [element for place in places for element in self._source.each(*place)]


class Passing(Reordered):
    """Base of steps that give the elements of their source."""

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self._source.iterate(iteration)

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        return self._source.behind(number, iteration)


class FromEach(Node):
    """Base of steps and sources whose elements are computed together, by `each`."""

    def element(self, index: int, iteration: Iteration) -> Element:
        return self.each(range(index, index + 1), iteration)[0]


def each_in_blocks(node: Node, size: int, iteration: Iteration) -> Iterator[Element]:
    for start in range(0, node.cardinality, size):
        yield from node.each(range(start, min(start + size, node.cardinality)), iteration)


def walk(node: Node) -> Iterator[Node]:
    for each in node.inputs:
        yield from walk(each)
    yield node


def on_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    """Return the node itself if its inputs are these, else the same step on them."""
    same = all(each is other for each, other in zip(node.inputs, inputs, strict=True))
    return node if same else node.with_inputs(inputs)


RowsOf = Callable[[int], range]
"""A function from the number of a batch's rows to the rows that are wanted."""


def rows_of(batch: Element, rows: RowsOf) -> tuple[Element | None, int]:
    """Return rows of a batch, as views, and how many it has in all; None if there is no row."""
    arrays = arrays_of(batch)
    if any(np.ndim(array) == 0 for array in arrays):
        raise NotBatchedError(
            "data: expected batches, found elements without an axis of examples; call .batch(n)"
        )
    size = len(arrays[0])
    wanted = rows(size)
    return (map_arrays(lambda array: array[wanted.start : wanted.stop], batch) if wanted else None), size


def spec_of_first(node: Node) -> Any:
    for element in node.iterate((0,)):
        return spec_of(element)
    raise NoElementError("element_spec: it is known only with the first element, and there is none.")


def runs_of(numbers: Indices, limit: int = sys.maxsize) -> Iterator[tuple[int, int]]:
    """Yield the places in `numbers` at which each run of successive numbers, of at most `limit`, lies."""
    start = 0
    for end in (np.flatnonzero(np.diff(np.asarray(numbers), append=-2) != 1) + 1).tolist():
        for begin in range(start, end, limit):
            yield begin, min(begin + limit, end)
        start = end


def total_of(cardinalities: Sequence[int]) -> int:
    """Return how many elements several nodes have one after another: a number, INFINITE or UNKNOWN."""
    if INFINITE in cardinalities:
        return INFINITE
    return UNKNOWN if UNKNOWN in cardinalities else sum(cardinalities)


def affine(indices: Indices, factor: int, offset: int) -> Indices:
    if isinstance(indices, range):
        return range(indices.start * factor + offset, indices.stop * factor + offset, indices.step * factor)
    return indices * factor + offset
