"""Objects with `__len__` and `__getitem__`, such as torch's map-style datasets and Grain's sources."""

from typing import Any

import numpy as np

from dtrain.data.node import Indices, Iteration, Node
from dtrain.data.structure import Element, as_arrays, spec_of
from dtrain.errors import InputError, NoElementError


class ItemSource(Node):
    """The items of an object, by number; tensors of other libraries become arrays."""

    addressable = True

    def __init__(self, source: Any) -> None:
        """Begin.

        Raises:
            InputError: the object has no length, or no items by number.
        """
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__") or isinstance(source, dict):
            raise InputError(
                "random_access: expected an object with __len__ and __getitem__, which takes numbers from 0, "
                f"found {type(source).__name__}"
            )
        self._source = source
        self.cardinality = len(source)

    @property
    def spec(self) -> Any:
        if not self.cardinality:
            raise NoElementError("element_spec: it is known only with the first element, and there is none.")
        return spec_of(self.element(0, (0,)))

    def element(self, index: int, iteration: Iteration) -> Element:
        return _as_element(self._source[index])

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        if hasattr(self._source, "__getitems__"):  # torch: several at once
            items = self._source.__getitems__([int(index) for index in indices])
            return [_as_element(item) for item in items]
        return [_as_element(self._source[int(index)]) for index in indices]


def _as_element(item: Any) -> Element:
    if isinstance(item, tuple | list) and not all(isinstance(part, int | float) for part in item):
        return tuple([_as_element(part) for part in item])
    if isinstance(item, dict):
        return {key: _as_element(part) for key, part in item.items()}
    return as_arrays(np.asarray(item) if hasattr(item, "__array__") else item)
