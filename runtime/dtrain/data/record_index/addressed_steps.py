"""Steps over indexed files whose elements are computed by number: interleave and filter."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from dtrain.data.grouping import Filtered, call
from dtrain.data.joining import Interleaved
from dtrain.data.node import Indices, Iteration, Node
from dtrain.data.record_index.turns import Turns
from dtrain.data.structure import Element

LAYOUTS_KEPT = 2


class AddressedInterleave(Interleaved):
    """An interleave of addressable nodes, whose number and lengths are the same in each iteration.

    The nodes themselves may come in another order in each iteration.
    """

    addressable = True
    computed = frozenset({"_layouts"})

    def __init__(
        self,
        source: Node,
        make: Callable[..., Node],
        cycle_length: int,
        block_length: int,
        alike: Node | None = None,
    ) -> None:
        """Begin; `make` makes addressable nodes, and `source` is one. All of them are made at once."""
        super().__init__(source, make, cycle_length, block_length, alike)
        self._made: dict[Any, Node] = {}
        self._layouts: OrderedDict[Iteration, tuple[list[Node], Turns]] = OrderedDict()
        nodes, turns = self._layout((0,))
        self.cardinality = turns.total
        self.batch_size = nodes[0].batch_size if len({node.batch_size for node in nodes}) == 1 else 0

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes of the first iteration."""
        return self._layout((0,))[0]

    def element(self, index: int, iteration: Iteration) -> Element:
        nodes, turns = self._layout(iteration)
        number, within = turns.at(index)
        return nodes[number].element(within, (*iteration, number))

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        nodes, turns = self._layout(iteration)
        asked: dict[int, tuple[list[int], list[int]]] = {}
        for place, index in enumerate(indices):
            number, within = turns.at(int(index))
            places, numbers = asked.setdefault(number, ([], []))
            places.append(place)
            numbers.append(within)
        found: list[Element] = [None] * len(indices)
        for number, (places, numbers) in asked.items():
            elements = nodes[number].each(np.array(numbers), (*iteration, number))
            for place, element in zip(places, elements, strict=True):
                found[place] = element
        return found

    def _layout(self, iteration: Iteration) -> tuple[list[Node], Turns]:
        layout = self._layouts.get(iteration)
        if layout is None:
            source = self._source
            names = source.each(range(source.cardinality), iteration) if source.cardinality else []
            nodes = [self._node(name) for name in names]
            layout = nodes, Turns([node.cardinality for node in nodes], self._cycle, self._block)
            self._layouts[iteration] = layout
            while len(self._layouts) > LAYOUTS_KEPT:
                self._layouts.popitem(last=False)
        return layout

    def _node(self, name: Element) -> Node:
        if not isinstance(name, bytes | str | np.generic):
            made: Node = call(self._make, name)
            return made
        if name not in self._made:
            self._made[name] = call(self._make, name)
        return self._made[name]


class AddressedFilter(Filtered):
    """A filter whose surviving positions in the source are known."""

    addressable = True

    def __init__(
        self, source: Node, predicate: Callable[..., Any], positions: np.ndarray[Any, np.dtype[np.uint64]]
    ) -> None:
        super().__init__(source, predicate)
        self._positions = positions
        self.cardinality = len(positions)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.element(int(self._positions[index]), iteration)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        return self._source.each(self._positions[np.asarray(indices, np.int64)].astype(np.int64), iteration)
