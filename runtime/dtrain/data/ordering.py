"""Steps that choose, order or count elements unseen: take, skip, shard, repeat, shuffle, a known length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, islice
from typing import Any

import numpy as np

from dtrain.data.node import INFINITE, UNKNOWN, Derived, Indices, Iteration, Node, Passing, Reordered, affine
from dtrain.data.permutation import (
    ARRAY_ROWS_MAX,
    Ahead,
    BlockPermutation,
    Listing,
    Permutation,
)
from dtrain.data.structure import Element
from dtrain.errors import InputError, InvalidArgumentError


class Picked(Reordered):
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

    def _locate(self, index: int, iteration: Iteration) -> tuple[int, Iteration]:
        return index * self._stride + self._start, iteration

    def _places(self, indices: Indices, iteration: Iteration) -> Iterable[tuple[Indices, Iteration]]:
        return [(affine(indices, self._stride, self._start), iteration)]

    def _count(self, available: int) -> int:
        if available == UNKNOWN:
            return 0 if self._limit == 0 else UNKNOWN
        if available == INFINITE:
            return INFINITE if self._limit is None else self._limit
        rest = len(range(self._start, available, self._stride))
        return rest if self._limit is None else min(rest, self._limit)


class Repeated(Reordered):
    """The source, repeated `times` times; None: without end."""

    def __init__(self, source: Node, times: int | None) -> None:
        super().__init__(source)
        self._times = times
        once = source.cardinality
        if times == 0 or once == 0:
            self.cardinality = 0
        elif times is None or once == INFINITE:
            self.cardinality = INFINITE
        else:
            self.cardinality = UNKNOWN if once == UNKNOWN else once * times

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self._passes(0, iteration)

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        """Leave out passes of a known length without a look at them."""
        length = self._source.cardinality
        past, left = divmod(number, length) if length > 0 else (0, number)
        while left and (self._times is None or past < self._times):
            found, elements = self._source.behind(left, (*iteration, past))
            past, left = past + 1, left - found
            if left == 0:
                return number, chain(elements, self._passes(past, iteration))
            if found == 0:
                return number - left, elements
        if self._times is not None and past > self._times:
            return self._times * length, iter(())
        return number - left, self._passes(past, iteration)

    def _passes(self, first: int, iteration: Iteration) -> Iterator[Element]:
        for past in count(first) if self._times is None else range(first, self._times):
            empty = True
            for element in self._source.iterate((*iteration, past)):
                empty = False
                yield element
            if empty:
                return

    def _locate(self, index: int, iteration: Iteration) -> tuple[int, Iteration]:
        length = self._source.cardinality
        past, inner = (0, index) if length == INFINITE else divmod(index, length)
        return inner, (*iteration, past)

    def _places(self, indices: Indices, iteration: Iteration) -> Iterable[tuple[Indices, Iteration]]:
        length = self._source.cardinality
        if length == INFINITE:
            yield indices, (*iteration, 0)
            return
        if isinstance(indices, range) and len(indices) and indices[0] // length == indices[-1] // length:
            past = indices[0] // length
            yield affine(indices, 1, -past * length), (*iteration, past)
            return
        passes, inner = np.divmod(np.asarray(indices, np.int64), length)
        ends = np.flatnonzero(np.diff(passes, append=-1)) + 1
        starts = [0, *ends[:-1]]
        for start, end in zip(starts, ends, strict=True):
            yield inner[start:end], (*iteration, int(passes[start]))


class Shuffled(Reordered):
    """The source in an order drawn from (seed, iteration).

    The next element is drawn from the `buffer_size` that come next in the source. A buffer no smaller than
    the source gives a permutation of the whole. Over an addressable source only indices are drawn; of more
    than ARRAY_ROWS_MAX rows they are computed when asked for, so that no array of them is in memory.
    `block` is None or the rows of a block; see `permutation.BlockPermutation`.
    """

    computed = frozenset({"_order"})

    def __init__(
        self,
        source: Node,
        buffer_size: int,
        seed: int,
        reshuffle_each_iteration: bool,
        block: int | None = None,
    ) -> None:
        if buffer_size < 1:
            raise InputError(f"shuffle: expected buffer_size >= 1, found {buffer_size}.")
        if block is not None and block < 1:
            raise InputError(f"shuffle: expected block >= 1, found {block}.")
        super().__init__(source)
        self._buffer_size = buffer_size
        self._seed = seed
        self._reshuffle = reshuffle_each_iteration
        self._block = block
        self.addressable = source.addressable and self.cardinality != INFINITE
        self._order = lru_cache(1)(self._drawn)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        block = self._block if inputs[0].addressable else None
        return Shuffled(inputs[0], self._buffer_size, self._seed, self._reshuffle, block)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            return super().iterate(iteration)
        return self._streamed(self._source.iterate(iteration), self._entropy(iteration))

    def _locate(self, index: int, iteration: Iteration) -> tuple[int, Iteration]:
        return self._order(iteration).row(index), iteration

    def _places(self, indices: Indices, iteration: Iteration) -> Iterable[tuple[Indices, Iteration]]:
        if isinstance(indices, range):
            indices = np.arange(indices.start, indices.stop, indices.step)
        return [(self._order(iteration).at(indices), iteration)]

    @property
    def order_varies(self) -> bool:
        return self._reshuffle or self._source.order_varies

    def _drawn(self, iteration: Iteration) -> Listing | Ahead:
        length, entropy = self.cardinality, self._entropy(iteration)
        if self._block is not None:
            return Ahead(BlockPermutation(length, self._block, self._buffer_size, entropy), length)
        if self._buffer_size < length:
            generator = np.random.default_rng(entropy)
            drawn = draw_through_buffer(iter(range(length)), self._buffer_size, generator)
            return Listing(np.fromiter(drawn, np.int64, length))
        if length <= ARRAY_ROWS_MAX:
            return Listing(np.random.default_rng(entropy).permutation(length))
        return Ahead(Permutation(length, entropy), length)

    def _streamed(self, source: Iterator[Element], entropy: list[int]) -> Iterator[Element]:
        """Yield elements in the order that they would have if they could be addressed."""
        if self._buffer_size > ARRAY_ROWS_MAX:
            head = list(islice(source, self._buffer_size + 1))
            if ARRAY_ROWS_MAX < len(head) <= self._buffer_size:
                order = Ahead(Permutation(len(head), entropy), len(head))
                return (head[order.row(index)] for index in range(len(head)))
            source = chain(head, source)
        return draw_through_buffer(source, self._buffer_size, np.random.default_rng(entropy))

    def _entropy(self, iteration: Iteration) -> list[int]:
        return [self._seed, *iteration] if self._reshuffle else [self._seed]


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


class OfLength(Passing):
    """The source, read from the front, of a known length; another one is an error if it is `asserted`."""

    def __init__(self, source: Node, cardinality: int, *, asserted: bool) -> None:
        super().__init__(source)
        self.addressable = False
        self.cardinality = cardinality
        self._asserted = asserted

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        return Node.behind(self, number, iteration) if self._asserted else super().behind(number, iteration)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        elements = self._source.iterate(iteration)
        if not self._asserted or self.cardinality == INFINITE:
            yield from elements
            return
        found = 0
        for element in islice(elements, self.cardinality):
            found += 1
            yield element
        more = next(elements, None) is not None
        if more or found < self.cardinality:
            told = f"more than {found}" if more else str(found)
            raise InvalidArgumentError(
                f"assert_cardinality: expected {self.cardinality} elements, as it says, found {told}"
            )


def counted(node: Node, tell: Callable[[int], None]) -> Node:
    """Return the same elements with a known length, for which a node of unknown length is read once.

    Functions of each element are not called for that. `tell` is called with the number of elements so far.
    """
    if node.cardinality != UNKNOWN:
        return node
    if isinstance(node, Derived) and not isinstance(node, Picked):
        return node.with_inputs([counted(node.inputs[0], tell)])
    length = 0
    for _ in node.iterate((0,)):
        length += 1
        tell(length)
    return OfLength(node, length, asserted=False)
