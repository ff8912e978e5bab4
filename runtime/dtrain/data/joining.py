"""Steps that join several streams: zip, concatenate, flat_map and interleave, or a choice for each element.

The choice is by chance or by a dataset: `tf.data.Dataset.sample_from_datasets` and `choose_from_datasets`.
The chance is dtrain's own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import numpy as np

from dtrain.data.grouping import call
from dtrain.data.node import (
    INFINITE,
    UNKNOWN,
    Indices,
    Iteration,
    Node,
    OfSeveral,
    OneSource,
    RowsOf,
    spec_of_first,
    total_of,
)
from dtrain.data.structure import Element, arrays_of, map_arrays
from dtrain.errors import InputError, InvalidArgumentError


class Zipped(Node):
    """Elements of several nodes side by side, until one ends; `nodes` is a tuple or dict of nodes, nested."""

    def __init__(self, nodes: Any) -> None:
        self._nodes = nodes
        self._leaves: tuple[Node, ...] = tuple(arrays_of(nodes))
        self.addressable = all(node.addressable for node in self._leaves)
        lengths = [node.cardinality for node in self._leaves]
        finite = [length for length in lengths if length >= 0]
        if 0 in finite or UNKNOWN not in lengths:
            self.cardinality = min(finite, default=INFINITE)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self._leaves

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Zipped(self._nested(inputs))

    def _nested(self, leaves: Iterable[Any]) -> Any:
        others = iter(leaves)
        return map_arrays(lambda _: next(others), self._nodes)

    @property
    def spec(self) -> Any:
        return map_arrays(lambda node: node.spec, self._nodes)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return map(self._nested, zip(*[node.iterate(iteration) for node in self._leaves], strict=False))

    def element(self, index: int, iteration: Iteration) -> Element:
        return map_arrays(lambda node: node.element(index, iteration), self._nodes)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        columns = [node.each(indices, iteration) for node in self._leaves]
        return list(map(self._nested, zip(*columns, strict=True)))


class Concatenated(OfSeveral):
    """The elements of one node, then those of another."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self._first, self._second = nodes
        self.addressable = all(node.addressable for node in nodes) and self._first.cardinality != INFINITE
        self.cardinality = total_of([node.cardinality for node in nodes])

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        yield from self._first.iterate(iteration)
        yield from self._second.iterate(iteration)

    def element(self, index: int, iteration: Iteration) -> Element:
        node, inner = self._locate(index)
        return node.element(inner, iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        node, inner = self._locate(index)
        return node.part(inner, iteration, rows)

    def _locate(self, index: int) -> tuple[Node, int]:
        beyond = index - self._first.cardinality
        return (self._first, index) if beyond < 0 else (self._second, beyond)


class Interleaved(OneSource):
    """`block_length` elements at a time, in turn, of `cycle_length` of the nodes that a function makes."""

    def __init__(self, source: Node, make: Callable[..., Node], cycle_length: int, block_length: int) -> None:
        if cycle_length < 1 or block_length < 1:
            raise InputError(
                f"interleave: expected lengths >= 1, found cycle_length {cycle_length}, block_length "
                f"{block_length}."
            )
        super().__init__(source)
        self._make = make
        self._cycle = cycle_length
        self._block = block_length

    def rebuilt(self, kind: "type[Interleaved]", source: Node) -> "Interleaved":
        step = kind(source, self._make, self._cycle, self._block)
        step.alike = self.alike or self
        return step

    @property
    def made_first(self) -> Node | None:
        return next(self.made_of(self._source), None)

    def made_of(self, source: Node) -> Iterator[Node]:
        return (call(self._make, element) for element in source.iterate((0,)))

    @cached_property
    def spec(self) -> Any:
        if self.alike is not None:
            return self.alike.spec
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


class Sampled(OfSeveral):
    """Each element from a node drawn at random by weights, from (seed, iteration)."""

    def __init__(
        self,
        nodes: Sequence[Node],
        weights: Sequence[float] | None,
        seed: int,
        stop_on_empty: bool,
        rerandomize: bool,
    ) -> None:
        super().__init__(nodes)
        self._stop = stop_on_empty
        given = np.ones(len(nodes)) if weights is None else np.asarray(weights, np.float64)
        if given.shape != (len(nodes),) or not (given >= 0).all() or not given.any():
            raise InputError(
                f"sample_from_datasets: expected {len(nodes)} weights >= 0, not all 0, found {weights}"
            )
        self._weights = given
        self._seed = seed
        self._rerandomize = rerandomize
        if not stop_on_empty and given.all():
            self.cardinality = total_of([node.cardinality for node in nodes])

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        generator = np.random.default_rng([self._seed, *iteration] if self._rerandomize else self._seed)
        streams = [node.iterate(iteration) for node in self._nodes]
        weights = self._weights.copy()
        while weights.any():
            bounds = np.cumsum(weights)
            drawn = int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))
            for element in streams[drawn]:
                yield element
                break
            else:
                if self._stop:
                    return
                weights[drawn] = 0


class Chosen(OfSeveral):
    """Each element from the node whose number, from 0, the next element of the first node is."""

    def __init__(self, nodes: Sequence[Node], stop_on_empty: bool) -> None:
        super().__init__(nodes)
        self._choices, *self._chosen = nodes
        self._stop = stop_on_empty

    @property
    def spec(self) -> Any:
        return self._chosen[0].spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        streams = [node.iterate(iteration) for node in self._chosen]
        ended: set[int] = set()
        for choice in self._choices.iterate(iteration):
            number = int(choice)
            if not 0 <= number < len(streams):
                raise InvalidArgumentError(
                    f"choose_from_datasets: expected numbers of datasets below {len(streams)}, found {number}"
                )
            for element in streams[number]:
                yield element
                break
            else:
                ended.add(number)
                if self._stop or len(ended) == len(streams):
                    return
