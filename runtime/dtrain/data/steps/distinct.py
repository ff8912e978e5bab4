"""Elements that have not come before. Source: `tf.data.Dataset.unique`."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.data.node import UNKNOWN, Iteration, Node
from dtrain.data.structure import Element, arrays_of


class Distinct(Node):
    """The first of equal elements; all that have come are remembered."""

    def __init__(self, source: Node) -> None:
        self._source = source
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Distinct(inputs[0])

    @property
    def spec(self) -> Any:
        return self._source.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        seen: set[Hashable] = set()
        for element in self._source.iterate(iteration):
            key = tuple(map(_key, arrays_of(element)))
            if key not in seen:
                seen.add(key)
                yield element


def _key(value: Any) -> Hashable:
    array = np.asarray(value)
    content = tuple(array.reshape(-1).tolist()) if array.dtype.hasobject else array.tobytes()
    return array.dtype.str, array.shape, content
