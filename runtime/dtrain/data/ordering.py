# ruff: noqa: D102 -- the methods are those of `Node`, documented there
"""Steps that choose and order elements without looking into them: take, skip, shard, repeat, shuffle."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np

from dtrain.data.node import INFINITE, UNKNOWN, Derived, Indices, Iteration, Node, RowsOf, affine
from dtrain.data.structure import Element, concatenate
from dtrain.errors import InputError


class Picked(Derived):
    """Every `stride`-th element from `start` on, at most `limit` (None: all); makes take, skip and shard."""

    def __init__(self, source: Node, start: int = 0, stride: int = 1, limit: int | None = None) -> None:
        super().__init__(source)
        self._start = start
        self._stride = stride
        self._limit = limit
        self.cardinality = self._count(source.cardinality)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            return super().iterate(iteration)
        stop = None if self._limit is None else self._start + self._limit * self._stride
        return islice(self._source.iterate(iteration), self._start, stop, self._stride)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.element(index * self._stride + self._start, iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        return self._source.part(index * self._stride + self._start, iteration, rows)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return self._source.elements(affine(indices, self._stride, self._start), iteration)

    def _count(self, available: int) -> int:
        if available == UNKNOWN:
            return 0 if self._limit == 0 else UNKNOWN
        if available == INFINITE:
            return INFINITE if self._limit is None else self._limit
        rest = len(range(self._start, available, self._stride))
        return rest if self._limit is None else min(rest, self._limit)


class Repeated(Derived):
    """The source, repeated `times` times; None: without end."""

    def __init__(self, source: Node, times: int | None) -> None:
        super().__init__(source)
        self._times = times
        once = source.cardinality
        self.addressable = source.addressable and once != INFINITE
        if times == 0 or once == 0:
            self.cardinality = 0
        elif times is None or once == INFINITE:
            self.cardinality = INFINITE
        else:
            self.cardinality = UNKNOWN if once == UNKNOWN else once * times

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for past in count() if self._times is None else range(self._times):
            empty = True
            for element in self._source.iterate((*iteration, past)):
                empty = False
                yield element
            if empty:
                return

    def element(self, index: int, iteration: Iteration) -> Element:
        past, inner = divmod(index, self._source.cardinality)
        return self._source.element(inner, (*iteration, past))

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        past, inner = divmod(index, self._source.cardinality)
        return self._source.part(inner, (*iteration, past), rows)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        length = self._source.cardinality
        if isinstance(indices, range) and len(indices) and indices[0] // length == indices[-1] // length:
            past = indices[0] // length
            return self._source.elements(affine(indices, 1, -past * length), (*iteration, past))
        passes, inner = np.divmod(np.asarray(indices, np.int64), length)
        ends = np.flatnonzero(np.diff(passes, append=-1)) + 1
        starts = [0, *ends[:-1]]
        return concatenate(
            [
                self._source.elements(inner[start:end], (*iteration, int(passes[start])))
                for start, end in zip(starts, ends, strict=True)
            ]
        )


class Shuffled(Derived):
    """The source in an order drawn from (seed, iteration).

    As in TensorFlow the next element is drawn from the `buffer_size` that come next in the source. A buffer
    no smaller than the source gives a permutation of the whole. Over an addressable source only indices are
    drawn.
    """

    def __init__(self, source: Node, buffer_size: int, seed: int, reshuffle_each_iteration: bool) -> None:
        if buffer_size < 1:
            raise InputError(f"shuffle: expected buffer_size >= 1, found {buffer_size}.")
        super().__init__(source)
        self._buffer_size = buffer_size
        self._seed = seed
        self._reshuffle = reshuffle_each_iteration
        self.addressable = source.addressable and self.cardinality != INFINITE
        self._newest: tuple[Iteration, np.ndarray[Any, np.dtype[np.int64]]] | None = None

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            return super().iterate(iteration)
        return draw_through_buffer(
            self._source.iterate(iteration), self._buffer_size, self._generator(iteration)
        )

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.element(int(self._order(iteration)[index]), iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        return self._source.part(int(self._order(iteration)[index]), iteration, rows)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        order = self._order(iteration)
        rows = (
            order[indices.start : indices.stop : indices.step]
            if isinstance(indices, range)
            else order[indices]
        )
        return self._source.elements(rows, iteration)

    def _order(self, iteration: Iteration) -> np.ndarray[Any, np.dtype[np.int64]]:
        newest = self._newest
        if newest is not None and newest[0] == iteration:
            return newest[1]
        generator = self._generator(iteration)
        length = self.cardinality
        if self._buffer_size >= length:
            order = generator.permutation(length)
        else:
            order = np.fromiter(
                draw_through_buffer(iter(range(length)), self._buffer_size, generator), np.int64, length
            )
        self._newest = (iteration, order)
        return order

    def _generator(self, iteration: Iteration) -> np.random.Generator:
        return np.random.default_rng([self._seed, *iteration] if self._reshuffle else self._seed)


def draw_through_buffer(
    source: Iterator[Any], buffer_size: int, generator: np.random.Generator
) -> Iterator[Any]:
    """Yield the elements of `source`, each drawn at random from a buffer of the next `buffer_size`."""
    buffer = list(islice(source, buffer_size))
    draws: list[int] = []
    for element in source:
        if not draws:
            draws = generator.integers(len(buffer), size=1024).tolist()
        place = draws.pop()
        yield buffer[place]
        buffer[place] = element
    for place in generator.permutation(len(buffer)):
        yield buffer[place]
