"""A node that keeps elements in memory once they have been computed."""

import threading
import warnings
from collections.abc import Iterator, Sequence

from dtrain.data.node import Derived, Iteration, Node
from dtrain.data.prefetching.tuning import SHARE, default_budget_bytes, size_bytes
from dtrain.data.structure import Element, arrays_of
from dtrain.errors import InputError

SHARE_OF_CACHE = 2
"""One part in so many of the memory is for elements that are kept, unless the program says how much."""
BYTES_AN_ELEMENT = 200
BYTES_AN_ARRAY = 120
"""About what Python needs to hold an element, and each of its arrays, beside the bytes in them."""


class Cached(Derived):
    """The source's first iteration, repeated in every iteration: an earlier shuffle keeps its order.

    Elements beyond the bound are computed anew in each iteration; of a stream then all are.
    """

    keeps_batches = True
    order_varies = False
    computed = frozenset({"_by_index", "_all", "_held_bytes", "_full", "_counting"})

    def __init__(self, source: Node, limit_bytes: int | None = None) -> None:
        """Begin; `limit_bytes` is how much memory elements may take, None: see SHARE_OF_CACHE."""
        super().__init__(source)
        check_limit(limit_bytes)
        self._limit_bytes = limit_bytes
        self._by_index: dict[int, Element] = {}
        self._all: list[Element] | None = None
        self._held_bytes = 0
        self._full = False
        self._counting = threading.Lock()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Cached(inputs[0], self._limit_bytes)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            yield from super().iterate(iteration)
        elif self._all is not None:
            yield from self._all
        else:
            yield from self._streamed(_first(iteration))

    def element(self, index: int, iteration: Iteration) -> Element:
        if index in self._by_index:
            return self._by_index[index]
        element = self._source.element(index, _first(iteration))
        with self._counting:
            if index not in self._by_index and self._has_room(held_bytes(element), self._held_bytes):
                self._held_bytes += held_bytes(element)
                self._by_index[index] = element
        return element

    def _streamed(self, iteration: Iteration) -> Iterator[Element]:
        kept: list[Element] | None = []
        kept_bytes = 0
        for element in self._source.iterate(iteration):
            if kept is not None and self._has_room(held_bytes(element), kept_bytes):
                kept.append(element)
                kept_bytes += held_bytes(element)
            else:
                kept = None
            yield element
        self._all = kept  # not earlier: an iteration that is broken off has not seen all elements

    def _has_room(self, nbytes: int, held: int) -> bool:
        limit = self._limit_bytes
        if limit is None:
            limit = default_budget_bytes() * SHARE // SHARE_OF_CACHE
        if held + nbytes <= limit:
            return not self._full
        if not self._full:
            self._full = True
            warnings.warn(
                f"cache: the elements take more than {limit} bytes, which may be kept in memory; the others "
                "are computed anew in each iteration: give more by cache(limit_bytes=...), or keep them in a "
                "file by cache(filename)",
                stacklevel=2,
            )
        return False


def check_limit(limit_bytes: int | None) -> None:
    """Raise an `InputError` for a bound that cannot be."""
    if limit_bytes is not None and limit_bytes < 1:
        raise InputError(f"cache: expected limit_bytes >= 1, found {limit_bytes}")


def held_bytes(element: Element) -> int:
    """Return about how much memory an element takes that is kept."""
    return size_bytes(element) + BYTES_AN_ELEMENT + BYTES_AN_ARRAY * len(arrays_of(element))


def _first(iteration: Iteration) -> Iteration:
    return (0,) * len(iteration)
