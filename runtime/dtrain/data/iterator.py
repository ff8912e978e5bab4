"""A walk through a dataset that knows where it is, and can be taken up again there."""

from collections.abc import Iterator
from itertools import islice

from dtrain.data.node import INFINITE, Iteration, Node
from dtrain.data.structure import Element


class DatasetIterator(Iterator[Element]):
    """Elements `position`, `position` + `stride`, ... of one iteration.

    `state` is a few plain numbers, from which a new iterator goes on where this one stands: at once where the pipeline is
    addressable, else by reading and dropping what comes before.
    """

    def __init__(self, node: Node, iteration: Iteration = (0,), position: int = 0, stride: int = 1) -> None:
        self._node, self._iteration, self._position, self._stride = node, iteration, position, stride
        self._end = float("inf") if node.cardinality == INFINITE else node.cardinality
        self._stream = None if node.addressable else islice(node.iterate(iteration), position, None, stride)

    def __next__(self) -> Element:
        if self._stream is not None:
            element = next(self._stream)
        elif self._position < self._end:
            element = self._node.element(self._position, self._iteration)
        else:
            raise StopIteration
        self._position += self._stride
        return element

    def state(self) -> dict[str, int]:
        """The iteration, and the position of the next element in it."""
        return {"iteration": self._iteration[0], "position": self._position}
