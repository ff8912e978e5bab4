# ruff: noqa: D102 -- the methods are those of `Node`, documented there
"""Steps that join several streams: zip, concatenate, flat_map and interleave."""

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

from dtrain.data.grouping import call
from dtrain.data.node import INFINITE, UNKNOWN, Iteration, Node, RowsOf, spec_of_first
from dtrain.data.structure import Element, map_arrays
from dtrain.errors import InputError


class Zipped(Node):
    """Elements of several nodes side by side, until one ends; `nodes` is a tuple or dict of nodes, nested."""

    def __init__(self, nodes: Any, leaves: list[Node]) -> None:
        self._nodes = nodes
        self.addressable = all(node.addressable for node in leaves)
        lengths = [node.cardinality for node in leaves]
        finite = [length for length in lengths if length >= 0]
        if 0 in finite or UNKNOWN not in lengths:
            self.cardinality = min(finite, default=INFINITE)

    @property
    def spec(self) -> Any:
        return map_arrays(lambda node: node.spec, self._nodes)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        streams = map_arrays(lambda node: node.iterate(iteration), self._nodes)
        while True:
            try:
                yield map_arrays(next, streams)
            except StopIteration:
                return

    def element(self, index: int, iteration: Iteration) -> Element:
        return map_arrays(lambda node: node.element(index, iteration), self._nodes)


class Concatenated(Node):
    """The elements of one node, then those of another."""

    def __init__(self, first: Node, second: Node) -> None:
        self._first = first
        self._second = second
        lengths = (first.cardinality, second.cardinality)
        self.addressable = first.addressable and second.addressable and first.cardinality != INFINITE
        if min(lengths) >= 0:
            self.cardinality = sum(lengths)
        else:
            self.cardinality = INFINITE if INFINITE in lengths else UNKNOWN

    @property
    def spec(self) -> Any:
        return self._first.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        yield from self._first.iterate(iteration)
        yield from self._second.iterate(iteration)

    def element(self, index: int, iteration: Iteration) -> Element:
        beyond = index - self._first.cardinality
        return (
            self._first.element(index, iteration) if beyond < 0 else self._second.element(beyond, iteration)
        )

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        beyond = index - self._first.cardinality
        return (
            self._first.part(index, iteration, rows)
            if beyond < 0
            else self._second.part(beyond, iteration, rows)
        )


class Interleaved(Node):
    """`block_length` elements at a time, in turn, of `cycle_length` of the nodes that a function makes."""

    def __init__(self, source: Node, make: Callable[..., Node], cycle_length: int, block_length: int) -> None:
        if cycle_length < 1 or block_length < 1:
            raise InputError(
                f"interleave: expected lengths >= 1, found cycle_length {cycle_length}, block_length "
                f"{block_length}."
            )
        self._source = source
        self._make = make
        self._cycle = cycle_length
        self._block = block_length

    @property
    def spec(self) -> Any:
        return spec_of_first(self)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        opened = (
            call(self._make, element).iterate((*iteration, index))
            for index, element in enumerate(self._source.iterate(iteration))
        )
        slots: list[Iterator[Element] | None] = [None] * self._cycle
        for turn in cycle(range(self._cycle)):
            slots[turn] = stream = slots[turn] or next(opened, None)
            if stream is None:
                if not any(slots):
                    return
                continue
            taken = 0
            for element in islice(stream, self._block):
                taken += 1
                yield element
            if taken < self._block:
                slots[turn] = None
