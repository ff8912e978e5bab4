"""A walk through a dataset that knows where it is, and can be taken up again there."""

from collections.abc import Iterator
from itertools import islice

from dtrain.data.node import INFINITE, Iteration, Node
from dtrain.data.structure import Element


class DatasetIterator(Iterator[Element]):
    """The elements of one iteration from `position` on.

    `state` is a few plain numbers, from which a new iterator goes on where this one stands: at once where the
    pipeline is addressable, else by reading and dropping what comes before.
    """

    def __init__(self, node: Node, iteration: Iteration = (0,), position: int = 0) -> None:
        self._node = node
        self._iteration = iteration
        self._position = position
        self._end = float("inf") if node.cardinality == INFINITE else node.cardinality
        self._stream = None if node.addressable else islice(node.iterate(iteration), position, None)

    def __next__(self) -> Element:
        if self._stream is not None:
            element = next(self._stream)
        elif self._position < self._end:
            element = self._node.element(self._position, self._iteration)
        else:
            raise StopIteration
        self._position += 1
        return element

    @property
    def position(self) -> int:
        """Number of the next element in the iteration."""
        return self._position

    def skip_to(self, position: int) -> None:
        """Leave out the elements before `position`, which must not lie behind."""
        if self._stream is not None:
            for _ in islice(self._stream, position - self._position):
                pass
        self._position = position

    def state(self) -> dict[str, int]:
        """Return the iteration, and the position of the next element in it."""
        return {"iteration": self._iteration[0], "position": self._position}
