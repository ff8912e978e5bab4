"""A walk through a dataset that can be taken up again, and the `Optional` of an element that may be missing.

Source: `tf.experimental.Optional`.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from dtrain.data.node import INFINITE, Iteration, Node
from dtrain.data.prefetching.prefetched import tuning_of
from dtrain.data.prefetching.threads import ReadAhead
from dtrain.data.prefetching.tuning import Forecast, size_bytes
from dtrain.data.record_index.addressing import addressed
from dtrain.data.structure import Element, spec_of
from dtrain.errors import InvalidArgumentError, OutOfRangeError

NO_VALUE = object()
"""Stands for the value that an optional does not have."""


class Optional:
    """A value or none; made by `from_value` and `empty`.

    Args:
        value: the value, or `NO_VALUE`.
        spec: returns the structure of `TensorSpec`s that it fits.
    """

    def __init__(self, value: Any, spec: Callable[[], Any]) -> None:
        """Hold a value, or `NO_VALUE`; `spec` returns the structure of `TensorSpec`s that it fits."""
        self._value = value
        self._spec = spec

    @staticmethod
    def from_value(value: Any) -> "Optional":
        """Return an optional that has a value."""
        return Optional(value, lambda: spec_of(value))

    @staticmethod
    def empty(element_spec: Any) -> "Optional":
        """Return an optional without a value; it would fit the structure of `TensorSpec`s."""
        return Optional(NO_VALUE, lambda: element_spec)

    @property
    def element_spec(self) -> Any:
        """The structure of `TensorSpec`s that the value fits."""
        return self._spec()

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._value is not NO_VALUE

    def get_value(self) -> Any:
        """Return the value.

        Raises:
            InvalidArgumentError: there is none.
        """
        if self._value is NO_VALUE:
            raise InvalidArgumentError(
                "get_value: the optional has no value: the iterator is at its end; ask has_value() before"
            )
        return self._value

    def __repr__(self) -> str:
        """Return the value, if there is one."""
        return f"Optional({self._value!r})" if self.has_value() else "Optional(no value)"


class ElementIterator(Iterator[Element]):
    """An iterator whose end can also be told by an error."""

    def get_next(self) -> Element:
        """Return the next element.

        Raises:
            OutOfRangeError: there is none.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(
                "get_next: the iterator is at its end; a for loop, or get_next_as_optional, ends there "
                "without an error"
            ) from None


class DatasetIterator(ElementIterator):
    """The elements of one iteration from `position` on.

    Where the dataset says `prefetch` or parallel calls, threads compute elements ahead, which end with the
    iterator. `state` is a few plain numbers, from which a new iterator goes on where this one stands: at once
    where the pipeline is addressable, or can be made so by an index of its files; else by reading and
    dropping what comes before.

    Args:
        node: the pipeline.
        iteration: which iteration of it, for shuffles.
        position: the number of the first element.
    """

    def __init__(self, node: Node, iteration: Iteration = (0,), position: int = 0) -> None:
        node = addressed(node) if position else node
        self._node = node
        self._iteration = iteration
        self._position = position
        self._end = float("inf") if node.cardinality == INFINITE else node.cardinality
        self._stream = None
        if not node.addressable:
            self._stream = node.behind(position, iteration)[1] if position else node.iterate(iteration)
        tuning = tuning_of(node) if node.addressable else None
        self._ahead: ReadAhead[Element] | None = None
        if tuning is not None:
            forecast = Forecast(end=node.cardinality if node.cardinality >= 0 else None)
            self._ahead = ReadAhead(
                lambda number: node.element(number, iteration), size_bytes, [forecast], tuning
            )

    def __next__(self) -> Element:
        if self._stream is not None:
            element = next(self._stream)
        elif self._position >= self._end:
            self.close()
            raise StopIteration
        elif self._ahead is not None:
            element = self._ahead.at(self._position)
        else:
            element = self._node.element(self._position, self._iteration)
        self._position += 1
        return element

    def close(self) -> None:
        """End the threads that read ahead; a further element is read when it is asked for."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __del__(self) -> None:
        ahead: ReadAhead[Element] | None = getattr(self, "_ahead", None)
        if ahead is not None:
            ahead.close(patience_s=0.0)

    def get_next_as_optional(self) -> Optional:
        """Return the next element as an optional, which has no value at the end."""
        return Optional(next(self, NO_VALUE), lambda: self.element_spec)

    @property
    def element_spec(self) -> Any:
        """The structure of `TensorSpec`s that every element fits."""
        return self._node.spec

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
