"""Steps that give each worker its share of a stream: every W-th element. Source: TensorFlow 2.15.1."""

from collections.abc import Iterator, Sequence
from itertools import islice

from dtrain.data.node import Derived, Indices, Iteration, Node, RowsOf
from dtrain.data.ordering import Picked
from dtrain.data.structure import Element
from dtrain.errors import InvalidArgumentError


class Dealt(Picked):
    """One worker's elements of a stream that is dealt to `workers`: every `workers`-th from `index` on.

    There must be one for every worker. As in TensorFlow the first read raises an `InvalidArgumentError` in
    each worker that has an element, and a worker that has none sees an empty stream.
    """

    def __init__(self, source: Node, workers: int, index: int) -> None:
        super().__init__(source, start=index, stride=workers)
        self._workers = workers
        self._index = index

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Dealt(inputs[0], self._workers, self._index)

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

    def element(self, index: int, iteration: Iteration) -> Element:
        self._check(self._source.cardinality)
        return super().element(index, iteration)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        self._check(self._source.cardinality)
        return super().elements(indices, iteration)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        self._check(self._source.cardinality)
        return super().each(indices, iteration)

    def part(self, index: int, iteration: Iteration, rows: RowsOf) -> tuple[Element | None, int]:
        self._check(self._source.cardinality)
        return super().part(index, iteration, rows)

    def _check(self, found: int) -> None:
        if 0 <= found < self._workers:
            raise InvalidArgumentError(
                f"autosharding: expected at least as many files or batches as workers ({self._workers}), "
                f"found {found}; write the data into more files, or choose another policy: "
                "options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA (every worker "
                "reads all files and keeps its part of each batch) or OFF (every worker uses all of them)"
            )


class ShardHint(Derived):
    """The source, as a mark: the policy HINT deals the stream to workers here. See `SHARD_HINT`."""

    keeps_batches = True

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return ShardHint(inputs[0])

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self._source.iterate(iteration)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._source.element(index, iteration)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return self._source.elements(indices, iteration)
