# ruff: noqa: D102 -- the methods are those of `Node`, documented there
"""A node that keeps elements in memory once they have been computed."""

from collections.abc import Iterator

from dtrain.data.node import Derived, Iteration, Node
from dtrain.data.structure import Element


class Cached(Derived):
    """The source's first iteration, repeated in every iteration: an earlier shuffle keeps its order."""

    def __init__(self, source: Node) -> None:
        super().__init__(source)
        self._by_index: dict[int, Element] = {}
        self._all: list[Element] | None = None

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            yield from super().iterate(iteration)
        elif self._all is not None:
            yield from self._all
        else:
            kept = []
            for element in self._source.iterate(_first(iteration)):
                kept.append(element)
                yield element
            self._all = kept  # not earlier: an iteration that is broken off has not seen all elements

    def element(self, index: int, iteration: Iteration) -> Element:
        if index not in self._by_index:
            self._by_index[index] = self._source.element(index, _first(iteration))
        return self._by_index[index]


def _first(iteration: Iteration) -> Iteration:
    return (0,) * len(iteration)
