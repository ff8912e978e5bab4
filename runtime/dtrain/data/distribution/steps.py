"""The batches of all replicas, step by step, of a dataset that names how it is to be dealt."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from dtrain.data.distribution.autosharding import distributed
from dtrain.data.distribution.options import AutoShardPolicy
from dtrain.data.input_context import InputContext
from dtrain.data.node import INFINITE, UNKNOWN, Iteration, Node
from dtrain.data.structure import Element, arrays_of


class Steps(Node):
    """The pipelines of several workers; an element is the list of the batches that a step is made of.

    It has one for each replica of all workers. Those with examples come first, and None stands for those
    without. The last step is that of the worker with most batches.
    """

    def __init__(self, pipelines: Sequence[Node], replicas: int) -> None:
        """Read the pipelines of all workers, of which each has so many replicas."""
        self._pipelines = pipelines
        self._replicas = replicas
        lengths = [node.cardinality for node in pipelines]
        if min(lengths) >= 0:
            self.cardinality = max(-(-length // replicas) for length in lengths)
        else:
            self.cardinality = INFINITE if INFINITE in lengths else UNKNOWN

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(self._pipelines)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Steps(inputs, self._replicas)

    @property
    def spec(self) -> Any:
        return self._pipelines[0].spec

    def iterate(self, iteration: Iteration) -> Iterator[list[Element | None]]:
        streams = [node.iterate(iteration) for node in self._pipelines]
        parts = self._replicas * len(streams)
        while batches := [each for stream in streams for each in islice(stream, self._replicas)]:
            filled = [batch for batch in batches if len(arrays_of(batch)[0])]
            yield filled + [None] * (parts - len(filled))


def steps_by_policy(node: Node, policy: AutoShardPolicy, workers: int, parts: int) -> Steps:
    """Return the steps that `parts` replicas of so many workers get of a pipeline of global batches.

    Raises: see `autosharding.distributed`.
    """
    contexts = [InputContext(workers, worker, parts) for worker in range(workers)]
    return Steps([distributed(node, each, policy) for each in contexts], parts // workers)
