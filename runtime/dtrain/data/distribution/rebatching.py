"""Steps that cut batches anew: across the source's batches, or each by itself. Source: TensorFlow 2.15.1."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from math import ceil
from typing import Any

from dtrain.data.grouping import Batched, rows_between, rows_in_a_row
from dtrain.data.node import INFINITE, UNKNOWN, Iteration, Node
from dtrain.data.structure import (
    Element,
    TensorSpec,
    arrays_of,
    concatenate,
    empty_batch,
    map_arrays,
    with_open_batches,
)
from dtrain.errors import InputError, NotBatchedError


class Rebatched(Node):
    """The rows of a stream of batches, in batches of these sizes in turn, across the source's boundaries.

    A size of 0 makes a batch without rows, for which nothing is read. Source: `tf.data.Dataset.rebatch`.
    """

    def __init__(
        self, source: Node, sizes: Sequence[int], drop_remainder: bool, alike: Node | None = None
    ) -> None:
        """Begin.

        Args:
            source: of batches.
            sizes: the sizes, in turn.
            drop_remainder: whether a last batch that is smaller than it should be is left out.
            alike: a node of batches of the same form, which is asked for the spec; default: the source.
        """
        if not sizes or min(sizes) < 0 or max(sizes) == 0:
            raise InputError(f"rebatch: expected sizes >= 0, not all of them 0, found {list(sizes)}.")
        self._source = source
        self._sizes = sizes
        self._drop = drop_remainder
        self._alike = alike or source
        if len(set(sizes)) == 1:
            self.batch_size = sizes[0]
        self._rows = rows_in_a_row(source)
        of_form = rows_of_batches(source)
        self.cardinality = self._count(self._rows if of_form == UNKNOWN and source.cardinality else of_form)
        self.addressable = self._rows != UNKNOWN and self.cardinality != UNKNOWN
        self._ends = [*accumulate(sizes)]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Rebatched(inputs[0], self._sizes, self._drop, self._alike)

    @property
    def spec(self) -> Any:
        spec = self._alike.spec
        lengths = {_length(each) for each in arrays_of(spec)} - {None}
        size = self._sizes[0]
        always_full = self._drop or (lengths and all(length % size == 0 for length in lengths if length))
        length = size if len(set(self._sizes)) == 1 and always_full else None
        return map_arrays(lambda each: TensorSpec((length, *each.shape[1:]), each.dtype), spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        batches = self._source.iterate(iteration)
        rest: Element = None
        for size in cycle(self._sizes):
            pieces: list[Element] = []
            missing = size
            while missing:
                if rest is None and (rest := next(batches, None)) is None:
                    break
                length = len(arrays_of(rest)[0])
                taken = min(missing, length)
                if taken:
                    pieces.append(_rows(rest, 0, taken))
                rest = _rows(rest, taken, length) if taken < length else None
                missing -= taken
            if missing and (self._drop or not pieces):
                return
            yield concatenate(pieces) if pieces else empty_batch(with_open_batches(self._alike.spec))
            if missing:
                return

    def element(self, index: int, iteration: Iteration) -> Element:
        """Return one batch; of the source only the rows in it are computed."""
        rounds, place = divmod(index, len(self._sizes))
        stop = rounds * self._ends[-1] + self._ends[place]
        start = stop - self._sizes[place]
        if self._rows != INFINITE:
            stop = min(stop, self._rows)
        if start >= stop:
            return empty_batch(with_open_batches(self._alike.spec))
        return concatenate(rows_between(self._source, range(start, stop), iteration))

    def _count(self, rows: int) -> int:
        if rows < 0:
            return rows
        rounds, rows = divmod(rows, sum(self._sizes))
        count = rounds * len(self._sizes)
        for size in self._sizes:
            if size and (rows == 0 or (self._drop and rows < size)):
                break
            count += 1
            if size > rows:
                break
            rows -= size
        return count


class SplitBatches(Node):
    """Each batch by itself, in `parts` blocks of equal size, of which the last ones may be smaller or empty.

    Source: `_LegacyRebatchDataset`.
    """

    def __init__(self, source: Node, parts: int) -> None:
        self._source = source
        self._parts = parts
        self.addressable = source.addressable
        self.cardinality = source.cardinality * parts if source.cardinality > 0 else source.cardinality

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return SplitBatches(inputs[0], self._parts)

    @property
    def spec(self) -> Any:
        return map_arrays(self._spec_of_block, self._source.spec)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        for batch in self._source.iterate(iteration):
            length = len(arrays_of(batch)[0])
            for part in range(self._parts):
                rows = self._rows(part, length)
                yield _rows(batch, rows.start, rows.stop)

    def element(self, index: int, iteration: Iteration) -> Element:
        """Return one block; of addressable elements only those in it are computed."""
        batch, part = divmod(index, self._parts)
        block, _ = self._source.part(batch, iteration, lambda length: self._rows(part, length))
        return empty_batch(with_open_batches(self._source.spec)) if block is None else block

    def _rows(self, part: int, length: int) -> range:
        size = ceil(length / self._parts)
        return range(min(part * size, length), min((part + 1) * size, length))

    def _spec_of_block(self, spec: TensorSpec) -> TensorSpec:
        length = _length(spec)
        even = length is not None and length % self._parts == 0
        return TensorSpec((length // self._parts if even and length else None, *spec.shape[1:]), spec.dtype)


def rows_of_batches(node: Node) -> int:
    """Return how many rows all batches of a pipeline have; UNKNOWN if its form does not say, or INFINITE."""
    if node.cardinality == INFINITE:
        return INFINITE
    if isinstance(node, Batched):
        return node.rows
    if node.keeps_batches and node.cardinality > 0:
        passes, others = divmod(node.cardinality, node.inputs[0].cardinality)
        rows = UNKNOWN if others or passes < 1 else rows_of_batches(node.inputs[0])
        return rows * passes if rows >= 0 else rows
    return UNKNOWN


def _length(spec: TensorSpec) -> int | None:
    if not spec.shape:
        raise NotBatchedError(
            "rebatch: expected a dataset of batches, found elements of shape (); call Dataset.batch before it"
        )
    return spec.shape[0]


def _rows(batch: Element, start: int, stop: int) -> Element:
    return map_arrays(lambda array: array[start:stop], batch)
