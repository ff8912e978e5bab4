"""Steps that look at several elements in a row: windows, a running state, an end that an element tells."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from dtrain.data.grouping import call
from dtrain.data.node import UNKNOWN, Iteration, Node, spec_of_first
from dtrain.data.structure import Element, as_arrays, map_arrays, spec_of
from dtrain.errors import InputError


class Listed(Node):
    """Elements in memory."""

    addressable = True

    def __init__(self, elements: Sequence[Element]) -> None:
        self._elements = elements
        self.cardinality = len(elements)

    @property
    def spec(self) -> Any:
        return spec_of(self._elements[0]) if self._elements else spec_of_first(self)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._elements[index]


class Windowed(Node):
    """Windows of elements, each a dataset; of elements of several arrays a dataset for each array."""

    def __init__(
        self,
        source: Node,
        size: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        wrap: Callable[[Node], Any],
    ) -> None:
        """Begin.

        Args:
            source: the elements.
            size: how many elements a window has.
            shift: how many elements lie between the first ones of two windows.
            stride: how many elements lie between two of a window.
            drop_remainder: whether windows at the end that have fewer elements are left out.
            wrap: makes a dataset of a node.
        """
        if min(size, shift, stride) < 1:
            raise InputError(
                f"window: expected size, shift and stride >= 1, found {size}, {shift} and {stride}"
            )
        self._source = source
        self._size, self._shift, self._stride = size, shift, stride
        self._drop = drop_remainder
        self._wrap = wrap
        self._span = (size - 1) * stride + 1
        count = source.cardinality
        if count >= 0:
            count = max(0, count - self._span + 1) if drop_remainder else count
            count = -(-count // shift)
        self.cardinality = count

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Windowed(inputs[0], self._size, self._shift, self._stride, self._drop, self._wrap)

    @property
    def spec(self) -> Any:
        raise InputError(
            "element_spec: the elements of window() are datasets; join them by flat_map, for example "
            "flat_map(lambda window: window.batch(size))"
        )

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        elements = self._source.iterate(iteration)
        held: deque[Element] = deque()
        while True:
            held.extend(islice(elements, self._span - len(held)))
            window = list(islice(held, 0, self._span, self._stride))
            if not window or (self._drop and len(window) < self._size):
                return
            yield map_arrays(lambda *arrays: self._wrap(Listed(arrays)), *window)
            for _ in range(min(self._shift, len(held))):
                held.popleft()
            for _ in islice(elements, max(0, self._shift - self._span)):
                pass  # windows that are further apart than they are long leave elements out


class TakenWhile(Node):
    """The elements before the first one for which a predicate is false."""

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        self._source = source
        self._predicate = predicate
        self.cardinality = 0 if source.cardinality == 0 else UNKNOWN

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return TakenWhile(inputs[0], self._predicate)

    @property
    def spec(self) -> Any:
        return self._source.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return takewhile(
            lambda element: bool(call(self._predicate, element)), self._source.iterate(iteration)
        )


class Scanned(Node):
    """A function of a running state and each element, which gives the next state and an element."""

    def __init__(
        self, source: Node, state: Any, function: Callable[[Any, Any], Any], alike: Node | None = None
    ) -> None:
        self._source = source
        self._state = state
        self._function = function
        self._alike = alike
        self.cardinality = source.cardinality

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self._source,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Scanned(inputs[0], self._state, self._function, self)

    @cached_property
    def spec(self) -> Any:
        return spec_of_first(self) if self._alike is None else self._alike.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        state = as_arrays(self._state)
        for element in self._source.iterate(iteration):
            result = self._function(state, element)
            if not isinstance(result, tuple) or len(result) != 2:
                raise InputError(
                    "scan: expected a function that returns (new_state, output), found "
                    f"{type(result).__name__}"
                )
            state, output = result
            yield as_arrays(output)
