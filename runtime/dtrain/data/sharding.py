"""Steps that give workers and replicas their shares: every W-th element, and smaller batches.

Sizes of batches are those of `compute_batch_size` and `batch_sizes_for_worker` in
`tensorflow.python.data.experimental.ops.distribute`. Source: TensorFlow 2.15.1.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, cycle, islice
from math import ceil
from typing import Any

from dtrain.data.grouping import Batched, rows_between, rows_in_a_row
from dtrain.data.joining import Concatenated, Zipped
from dtrain.data.node import INFINITE, UNKNOWN, Indices, Iteration, Node, OneSource, Passing
from dtrain.data.ordering import Picked
from dtrain.data.structure import (
    Element,
    TensorSpec,
    arrays_of,
    concatenate,
    empty_batch,
    map_arrays,
    with_open_batches,
)
from dtrain.errors import InputError, InvalidArgumentError, NoElementError, NotBatchedError


class WorkerShare(Picked):
    """One worker's elements of a stream: every `workers`-th from `index` on.

    If some worker has none, then as in TensorFlow the first read raises an `InvalidArgumentError` in the
    others, and that worker sees an empty stream.
    """

    def __init__(self, source: Node, workers: int, index: int) -> None:
        super().__init__(source, start=index, stride=workers)
        self._workers = workers
        self._index = index

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            yield from super().iterate(iteration)
            return
        elements = self._source.iterate(iteration)
        first = list(islice(elements, self._workers))
        if len(first) <= self._index:
            return
        self._check(len(first))
        yield first[self._index]
        del first
        yield from islice(elements, self._index, None, self._workers)

    def _locate(self, index: int, iteration: Iteration) -> tuple[int, Iteration]:
        self._check(self._source.cardinality)
        return super()._locate(index, iteration)

    def _places(self, indices: Indices, iteration: Iteration) -> Iterable[tuple[Indices, Iteration]]:
        self._check(self._source.cardinality)
        return super()._places(indices, iteration)

    def _check(self, found: int) -> None:
        if 0 <= found < self._workers:
            raise InvalidArgumentError(
                f"autosharding: expected at least as many files or batches as workers ({self._workers}), "
                f"found {found}; write the data into more files, or choose another policy: "
                "options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA (every worker "
                "reads all files and keeps its part of each batch) or OFF (every worker uses all of them)"
            )


class ShardHint(Passing):
    """A mark: the policy HINT deals the stream to workers here (SHARD_HINT)."""


class Rebatched(OneSource):
    """The rows of a stream of batches, in batches of these sizes in turn, across the source's boundaries.

    A size of 0 makes a batch without rows, for which nothing is read. Source: `tf.data.Dataset.rebatch`.
    """

    def __init__(self, source: Node, sizes: Sequence[int], drop_remainder: bool) -> None:
        if not sizes or min(sizes) < 0 or max(sizes) == 0:
            raise InputError(f"rebatch: expected sizes >= 0, not all of them 0, found {list(sizes)}.")
        super().__init__(source)
        self._sizes = sizes
        self._drop = drop_remainder
        if len(set(sizes)) == 1:
            self.batch_size = sizes[0]
        self._rows = rows_in_a_row(source)
        of_form = rows_of_batches(source)
        self.cardinality = self._count(self._rows if of_form == UNKNOWN and source.cardinality else of_form)
        self.addressable = self._rows != UNKNOWN and self.cardinality != UNKNOWN
        self._ends = [*accumulate(sizes)]

    @property
    def _spec_of_source(self) -> Any:
        """The spec of the first source: another one may have no element to learn it from."""
        return (self.alike or self).inputs[0].spec

    @property
    def spec(self) -> Any:
        spec = self._spec_of_source
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
            yield concatenate(pieces) if pieces else empty_batch(with_open_batches(self._spec_of_source))
            if missing:
                return

    def element(self, index: int, iteration: Iteration) -> Element:
        rounds, place = divmod(index, len(self._sizes))
        stop = rounds * self._ends[-1] + self._ends[place]
        start = stop - self._sizes[place]
        if self._rows != INFINITE:
            stop = min(stop, self._rows)
        if start >= stop:
            return empty_batch(with_open_batches(self._spec_of_source))
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


class SplitBatches(OneSource):
    """Each batch by itself, in `parts` blocks of one size, of which the last ones may be smaller or empty."""

    def __init__(self, source: Node, parts: int) -> None:
        super().__init__(source)
        self._parts = parts
        self.addressable = source.addressable
        self.cardinality = source.cardinality * parts if source.cardinality > 0 else source.cardinality

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


NOT_KNOWN = -1
"""The batch size of a pipeline that has other steps after `batch`."""


def batch_sizes_for_worker(
    global_batch_size: int, num_workers: int, num_replicas_per_worker: int, worker_index: int
) -> list[int]:
    """Return the sizes into which one worker cuts its batches, in turn: one for each replica of all workers.

    They add up to the global batch, and so does what all replicas get in a step: the lists of workers begin
    at different places.
    """
    replicas = num_workers * num_replicas_per_worker
    size, larger = divmod(global_batch_size, replicas)
    of_first = [size + 1] * larger + [size] * (replicas - larger)
    start = worker_index * num_replicas_per_worker
    return of_first[start:] + of_first[:start]


def compute_batch_size(node: Node) -> int:
    """Return the size of all batches but smaller last ones; NOT_KNOWN if the pipeline's form does not say."""
    try:
        specs = arrays_of(node.spec)
    except NoElementError:
        return _by_its_steps(node)
    lengths = []
    for spec in specs:
        if not spec.shape:
            raise NotBatchedError(
                "experimental_distribute_dataset: expected a dataset of batches, found elements of shape (); "
                "call Dataset.batch(global_batch_size) before it is distributed to several replicas"
            )
        lengths.append(spec.shape[0])
    if None not in lengths:
        return lengths[0] if len(set(lengths)) == 1 else NOT_KNOWN
    return _by_its_steps(node)


def _by_its_steps(node: Node) -> int:
    """Return the size that the last `batch` has been given, if no step after it can have changed it."""
    if isinstance(node, Batched):
        return node.batch_size
    if node.keeps_batches:
        return _by_its_steps(node.inputs[0])
    if isinstance(node, Zipped | Concatenated):
        sizes = {_by_its_steps(each) for each in node.inputs}
        return sizes.pop() if len(sizes) == 1 else NOT_KNOWN
    return NOT_KNOWN
