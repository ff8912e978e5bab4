"""Steps that join several streams: zip, concatenate, flat_map and interleave."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import Any

from dtrain.data.grouping import call
from dtrain.data.node import INFINITE, UNKNOWN, Indices, Iteration, Node, RowsOf, spec_of_first
from dtrain.data.structure import Element, map_arrays
from dtrain.errors import InputError


class Zipped(Node):
    """Elements of several nodes side by side, until one ends; `nodes` is a tuple or dict of nodes, nested."""

    def __init__(self, nodes: Any, leaves: list[Node]) -> None:
        self._nodes = nodes
        self._leaves = tuple(leaves)
        self.addressable = all(node.addressable for node in leaves)
        lengths = [node.cardinality for node in leaves]
        finite = [length for length in lengths if length >= 0]
        if 0 in finite or UNKNOWN not in lengths:
            self.cardinality = min(finite, default=INFINITE)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self._leaves

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        others = iter(inputs)
        return Zipped(map_arrays(lambda _: next(others), self._nodes), list(inputs))

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

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        columns = [iter(node.each(indices, iteration)) for node in self._leaves]
        return [self._side_by_side(iter([next(column) for column in columns])) for _ in indices]

    def _side_by_side(self, leaves: Iterator[Element]) -> Element:
        return map_arrays(lambda _: next(leaves), self._nodes)


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
    def inputs(self) -> tuple[Node, ...]:
        return self._first, self._second

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Concatenated(*inputs)

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
    """`block_length` elements at a time, in turn, of `cycle_length` of the nodes that a function makes.

    `alike` is a node with elements of the same form, which is asked for the spec: with other inputs there may
    be no element.
    """

    def __init__(
        self,
        source: Node,
        make: Callable[..., Node],
        cycle_length: int,
        block_length: int,
        alike: Node | None = None,
    ) -> None:
        if cycle_length < 1 or block_length < 1:
            raise InputError(
                f"interleave: expected lengths >= 1, found cycle_length {cycle_length}, block_length "
                f"{block_length}."
            )
        self._source = source
        self._make = make
        self._cycle = cycle_length
        self._block = block_length
        self._alike = alike

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Interleaved(inputs[0], self._make, self._cycle, self._block, self)

    def rebuilt(
        self,
        kind: "type[Interleaved]",
        source: Node,
        wrap: Callable[[Callable[..., Node]], Callable[..., Node]],
    ) -> "Interleaved":
        """Return the same step as one of a subclass, on another source, with a function around its own."""
        return kind(source, wrap(self._make), self._cycle, self._block, self)

    @property
    def made_first(self) -> Node | None:
        """Return the node that the function makes of the first element; None if there is no element."""
        for element in self._source.iterate((0,)):
            made: Node = call(self._make, element)
            return made
        return None

    def made_of(self, source: Node) -> Iterator[Node]:
        """Yield the node that the function makes of each element of a source."""
        return (call(self._make, element) for element in source.iterate((0,)))

    @cached_property
    def spec(self) -> Any:
        if self._alike is not None:
            return self._alike.spec
        first = self.made_first
        return spec_of_first(self) if first is None else first.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        opened = (
            call(self._make, element).iterate((*iteration, index))
            for index, element in enumerate(self._source.iterate(iteration))
        )
        if self._cycle == 1:
            for stream in opened:
                yield from stream
            return
        slots: list[Iterator[Element] | None] = [None] * self._cycle
        for turn in cycle(range(self._cycle)):
            slots[turn] = taking = slots[turn] or next(opened, None)
            if taking is None:
                if not any(slots):
                    return
                continue
            taken = 0
            for element in islice(taking, self._block):
                taken += 1
                yield element
            if taken < self._block:
                slots[turn] = None
