"""The rewrite of a pipeline into one whose elements can be computed by number.

    node = addressed(dataset.node)      # the same elements in the same order
    node.addressable, obstacles(dataset.node)

Files of rows get their indexes, which are built for that; `interleave` and `flat_map` over a fixed list of
them become arithmetic; a `filter` becomes a list of surviving positions; a cache in a file is built.

Streams that are interleaved sit in slots, which take turns: the one in a slot gives up to `block` elements
in each turn. One that gives fewer has ended, and the next stream that was not begun takes its slot at the
slot's next turn.

The positions that a filter leaves over are computed once, and kept in the run directory under the
fingerprint of the pipeline and the predicate. A filter without one is computed by every task.
"""

import heapq
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dtrain.data.build_once import Write, once_in_run
from dtrain.data.caching import Cached, Stored, StoredElements
from dtrain.data.grouping import Filtered, Unbatched, call, may_be_rows_in_a_row
from dtrain.data.joining import Chosen, Concatenated, Interleaved, Sampled, Zipped
from dtrain.data.node import INFINITE, Derived, Indices, Iteration, Node, each_in_blocks, on_inputs
from dtrain.data.ordering import Picked, Shuffled
from dtrain.data.readers.rows import FileRows
from dtrain.data.record_index.fingerprint import NoFingerprintError, fingerprint
from dtrain.data.record_index.index_files import (
    FOLDER,
    SUFFIX,
    WAIT_S,
    Offsets,
    read_index,
    write_index,
)
from dtrain.data.sharding import Rebatched, SplitBatches
from dtrain.data.sources import Generated
from dtrain.data.stores.local import FileFacts
from dtrain.data.structure import Element
from dtrain.data.windows import Distinct, Grouped, Scanned, TakenWhile, Windowed
from dtrain.process.assignment import RUN_DIR

ADDRESSABLE_OVER_ADDRESSABLE = (Derived, Zipped, Concatenated)
FIXED_ORDER = (Cached, Stored, StoredElements)
"""The steps that give the elements of the first iteration in each."""
NAMES: dict[type[Node], str] = {
    Generated: "a generator (from_generator)",
    TakenWhile: "take_while",
    Scanned: "scan",
    Windowed: "window",
    Grouped: "group_by_window or bucket_by_sequence_length",
    Distinct: "unique",
    Unbatched: "unbatch after a step that may change how many rows a batch has",
    Rebatched: "rebatch after a step that may change how many rows a batch has",
    SplitBatches: "rebatch",
    Sampled: "sample_from_datasets",
    Chosen: "choose_from_datasets",
}


def addressed(node: Node) -> Node:
    """Return the same elements in the same order, addressable where that can be; else the node itself.

    A `WaitTimeoutError` says that another task takes too long to build an index.
    """
    if node.addressable or obstacles(node):
        return node
    rewritten = _rewritten(node)
    return rewritten if rewritten.addressable else node


def obstacles(node: Node) -> list[str]:
    """Return what of a pipeline can only be read from the front, in the user's words; nothing is indexed."""
    if node.addressable or isinstance(node, Stored):
        return []
    found = [each for one in inputs_and_made(node) for each in obstacles(one)]
    if own := _obstacle(node):
        found.append(own)
    return list(dict.fromkeys(found))


def _obstacle(node: Node) -> str:
    """Return why a step would not be addressable on addressable inputs; empty if it would be."""
    endless = any(each.cardinality == INFINITE for each in node.inputs)
    if isinstance(node, FileRows):
        return node.format.obstacle
    if isinstance(node, Interleaved):
        if endless:
            return "interleave over file names without end (repeat after it)"
        return "interleave over other files in each iteration" if _members_vary(node.inputs[0]) else ""
    if isinstance(node, Filtered):
        if endless:
            return "filter after repeat() without end (filter first)"
        varies = order_varies(node.inputs[0])
        return "filter after a shuffle that changes with each iteration (filter first)" if varies else ""
    if isinstance(node, Shuffled | Concatenated) and node.inputs[0].cardinality == INFINITE:
        return f"{type(node).__name__.lower()} elements after repeat() without end (repeat last)"
    if isinstance(node, ADDRESSABLE_OVER_ADDRESSABLE):
        return ""
    if isinstance(node, Unbatched | Rebatched) and may_be_rows_in_a_row(node.inputs[0]):
        return ""
    return NAMES.get(type(node), type(node).__name__)


def order_varies(node: Node) -> bool:
    """Return whether elements, also inside of interleaves, come in another order in each iteration."""
    if isinstance(node, FIXED_ORDER):
        return False
    return node.order_varies or any(order_varies(each) for each in inputs_and_made(node))


def _members_vary(node: Node) -> bool:
    """Return whether other elements, and not only others first, may come in each iteration."""
    if isinstance(node, FIXED_ORDER):
        return False
    chooses = isinstance(node, Picked | Filtered) and order_varies(node)
    return chooses or any(_members_vary(each) for each in node.inputs)


def inputs_and_made(node: Node) -> list[Node]:
    """Return a node's inputs, and for an interleave the first of the nodes that it makes."""
    made = node.made_first if isinstance(node, Interleaved) else None
    return [*node.inputs, *([] if made is None else [made])]


def _rewritten(node: Node) -> Node:
    if node.addressable:
        return node
    if isinstance(node, FileRows):
        return node.addressed()
    if isinstance(node, Stored):
        return node.whole()
    inputs = [_rewritten(each) for each in node.inputs]
    if isinstance(node, Interleaved):
        return node.rebuilt(AddressedInterleave, inputs[0])
    if isinstance(node, Filtered):
        return AddressedFilter(inputs[0], node.predicate, surviving(inputs[0], node.predicate))
    return on_inputs(node, inputs)


PHASES_KEPT = 1024


class _Phase(NamedTuple):
    """Rounds in which the same streams, in the order of their slots, give the same numbers of elements.

    `ends` says after how many elements of a round each of them has given its own.
    """

    first_round: int
    streams: list[int]
    ends: list[int]


class Turns:
    """The order of the elements of streams of known lengths that take turns; there are `total` of them."""

    def __init__(self, lengths: Sequence[int], cycle: int, block: int) -> None:
        self._block = block
        self._lengths = lengths
        self.total = sum(lengths)
        self._ends = np.cumsum(np.array([*lengths, 0], np.int64)) if cycle == 1 else None
        if self._ends is not None:
            return
        # Each stream: its slot, and the rounds of its first and last turn.
        free = [(0, slot) for slot in range(min(cycle, len(lengths)))]
        self._turns: list[tuple[int, int, int]] = []
        for length in lengths:
            first, slot = heapq.heappop(free)
            last = first + length // block
            self._turns.append((slot, first, last))
            heapq.heappush(free, (last + 1, slot))
        rounds = {bound for _, first, last in self._turns for bound in (first, last, last + 1)}
        self._bounds = sorted(rounds)
        self._starts = self._starts_of_phases()
        self._phase = lru_cache(PHASES_KEPT)(self._made_phase)

    def at(self, place: int) -> tuple[int, int]:
        """Return the number of the stream of the element at a place, and the element's number in it."""
        if self._ends is not None:
            stream = int(np.searchsorted(self._ends, place, "right"))
            return stream, place - int(self._ends[stream]) + self._lengths[stream]
        number = bisect_right(self._starts, place) - 1
        phase = self._phase(number)
        past, rest = divmod(place - self._starts[number], phase.ends[-1])
        turn = bisect_right(phase.ends, rest)
        stream = phase.streams[turn]
        within = rest - (phase.ends[turn - 1] if turn else 0)
        return stream, (phase.first_round + past - self._turns[stream][1]) * self._block + within

    def _given(self, stream: int, in_round: int) -> int:
        return self._block if in_round < self._turns[stream][2] else self._lengths[stream] % self._block

    def _starts_of_phases(self) -> list[int]:
        changes = dict.fromkeys(self._bounds, 0)
        for (_, first, last), length in zip(self._turns, self._lengths, strict=True):
            changes[first] += self._block
            changes[last] += length % self._block - self._block
            changes[last + 1] -= length % self._block
        starts, a_round = [0], 0
        for bound, after in zip(self._bounds, self._bounds[1:], strict=False):
            a_round += changes[bound]
            starts.append(starts[-1] + a_round * (after - bound))
        return starts

    def _made_phase(self, number: int) -> _Phase:
        first = self._bounds[number]
        present = sorted(
            (slot, stream)
            for stream, (slot, begins, last) in enumerate(self._turns)
            if begins <= first <= last
        )
        given = [(stream, count) for _, stream in present if (count := self._given(stream, first))]
        ends = np.cumsum([count for _, count in given]).tolist()
        return _Phase(first, [stream for stream, _ in given], ends)


LAYOUTS_KEPT = 2


class AddressedInterleave(Interleaved):
    """An interleave of addressable nodes, of the same number and lengths in each iteration."""

    addressable = True
    computed = frozenset({"_layout"})

    def __init__(self, source: Node, make: Callable[..., Node], cycle_length: int, block_length: int) -> None:
        super().__init__(source, make, cycle_length, block_length)
        self._made: dict[Any, Node] = {}
        self._layout = lru_cache(LAYOUTS_KEPT)(self._made_layout)
        nodes, turns = self._layout((0,))
        self.cardinality = turns.total
        self.batch_size = nodes[0].batch_size if len({node.batch_size for node in nodes}) == 1 else 0

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

    def _made_layout(self, iteration: Iteration) -> tuple[list[Node], Turns]:
        source = self._source
        names = source.each(range(source.cardinality), iteration) if source.cardinality else []
        nodes = [self._node(name) for name in names]
        return nodes, Turns([node.cardinality for node in nodes], self._cycle, self._block)

    def _node(self, name: Element) -> Node:
        if isinstance(name, bytes | str | np.generic) and name in self._made:
            return self._made[name]
        made = _rewritten(call(self._make, name))
        if isinstance(name, bytes | str | np.generic):
            self._made[name] = made
        return made


class AddressedFilter(Filtered):
    """A filter whose surviving `positions` in the source are known."""

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


ROWS_PER_S = 1000
"""The speed that is expected of a task that computes the positions."""
CHECKED = 32
"""Positions at which kept ones are compared with what the predicate says."""
BLOCK_ROWS = 1024


def surviving(source: Node, predicate: Callable[..., Any]) -> Offsets:
    """Return the positions in an addressable source of the elements for which a predicate holds."""
    if not os.environ.get(RUN_DIR):
        return _computed(source, predicate)
    try:
        digest = fingerprint(source, predicate)
    except NoFingerprintError:
        return _computed(source, predicate)
    facts = FileFacts(source.cardinality, 0, 0, 0)

    def read(path: Path) -> Offsets | None:
        kept = read_index(path, "filter", facts)
        return kept[:-1] if kept is not None and _holds(kept[:-1], source, predicate) else None

    def keep(write: Write, positions: Offsets) -> None:
        write_index(write, "filter", facts, np.append(positions, np.uint64(source.cardinality)))

    return once_in_run(
        f"{FOLDER}/filter-{digest}{SUFFIX}",
        read,
        lambda: _computed(source, predicate),
        keep,
        WAIT_S + source.cardinality / ROWS_PER_S,
        "find the elements that a filter leaves over",
    )


def _computed(source: Node, predicate: Callable[..., Any]) -> Offsets:
    rows = enumerate(each_in_blocks(source, BLOCK_ROWS, (0,)))
    return np.array([place for place, row in rows if call(predicate, row)], np.uint64)


def _holds(positions: Offsets, source: Node, predicate: Callable[..., Any]) -> bool:
    """Return whether the predicate says the same at some positions as before."""
    step = max(1, source.cardinality // CHECKED)
    places = np.arange(0, source.cardinality, step, dtype=np.uint64)
    found = np.searchsorted(positions, places)
    were = [at < len(positions) and positions[at] == place for at, place in zip(found, places, strict=True)]
    rows = source.each(places.astype(np.int64), (0,))
    return were == [bool(call(predicate, row)) for row in rows]
