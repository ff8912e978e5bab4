"""Elements of several datasets, one at a time, by chance or by a dataset of choices.

Source: `tf.data.Dataset.sample_from_datasets` and `choose_from_datasets`. The chance is dtrain's own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.data.node import INFINITE, UNKNOWN, Iteration, Node
from dtrain.data.structure import Element
from dtrain.errors import InputError, InvalidArgumentError


class _OfSeveral(Node):
    """Base of steps that take elements of several nodes, until all of them, or the first, have ended."""

    def __init__(self, nodes: Sequence[Node], stop_on_empty: bool) -> None:
        if not nodes:
            raise InputError("sample_from_datasets, choose_from_datasets: expected at least one dataset")
        self._nodes = tuple(nodes)
        self._stop = stop_on_empty

    @property
    def spec(self) -> Any:
        return self._nodes[0].spec


class Sampled(_OfSeveral):
    """Each element from a node drawn at random by weights, from (seed, iteration)."""

    def __init__(
        self,
        nodes: Sequence[Node],
        weights: Sequence[float] | None,
        seed: int,
        stop_on_empty: bool,
        rerandomize: bool,
    ) -> None:
        super().__init__(nodes, stop_on_empty)
        given = np.ones(len(nodes)) if weights is None else np.asarray(weights, np.float64)
        if given.shape != (len(nodes),) or not (given >= 0).all() or not given.any():
            raise InputError(
                f"sample_from_datasets: expected {len(nodes)} weights >= 0, not all 0, found {weights}"
            )
        self._weights = given
        self._seed = seed
        self._rerandomize = rerandomize
        lengths = [node.cardinality for node in nodes]
        if not stop_on_empty and given.all():
            known = sum(lengths) if min(lengths) >= 0 else UNKNOWN
            self.cardinality = INFINITE if INFINITE in lengths else known

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self._nodes

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Sampled(inputs, list(self._weights), self._seed, self._stop, self._rerandomize)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        generator = np.random.default_rng([self._seed, *iteration] if self._rerandomize else self._seed)
        streams = [node.iterate(iteration) for node in self._nodes]
        weights = self._weights.copy()
        while weights.any():
            bounds = np.cumsum(weights)
            drawn = int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))
            for element in streams[drawn]:
                yield element
                break
            else:
                if self._stop:
                    return
                weights[drawn] = 0


class Chosen(_OfSeveral):
    """Each element from the node whose number the next element of another node is."""

    def __init__(self, nodes: Sequence[Node], choices: Node, stop_on_empty: bool) -> None:
        super().__init__(nodes, stop_on_empty)
        self._choices = choices

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._choices, *self._nodes)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Chosen(inputs[1:], inputs[0], self._stop)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        streams = [node.iterate(iteration) for node in self._nodes]
        ended: set[int] = set()
        for choice in self._choices.iterate(iteration):
            number = int(choice)
            if not 0 <= number < len(streams):
                raise InvalidArgumentError(
                    f"choose_from_datasets: expected numbers of datasets below {len(streams)}, found {number}"
                )
            for element in streams[number]:
                yield element
                break
            else:
                ended.add(number)
                if self._stop or len(ended) == len(streams):
                    return
