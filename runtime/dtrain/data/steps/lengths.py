"""Datasets whose length a user or a first reading tells; see `tf.data.experimental.assert_cardinality`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from dtrain.data.node import INFINITE, UNKNOWN, Derived, Iteration, Node
from dtrain.data.ordering import Picked
from dtrain.data.structure import Element
from dtrain.errors import InvalidArgumentError


class OfLength(Derived):
    """The source, of which it is known how many elements it has."""

    keeps_batches = True

    def __init__(self, source: Node, cardinality: int, *, asserted: bool) -> None:
        """Begin.

        Args:
            source: read from the front.
            cardinality: a number of elements, or INFINITE.
            asserted: whether another number is an error, as where a user has said this one.
        """
        super().__init__(source)
        self.addressable = False
        self.cardinality = cardinality
        self._asserted = asserted

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return OfLength(inputs[0], self.cardinality, asserted=self._asserted)

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
    """Return the same elements with a known length; what has none is read once, and what is made of each of
    its elements is not computed for that.

    Args:
        node: without end it must not be, unless it says so.
        tell: called with the number of elements so far.
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
