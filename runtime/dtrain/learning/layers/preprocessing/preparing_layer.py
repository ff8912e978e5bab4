"""The base of layers that prepare data, and the reading of data that they learn from."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.base import Call, Layer, SymbolicTensor
from dtrain.types import Array

BATCH_SIZE = 32
"""Examples of an array that are learned from at once, where `adapt` is not told."""
OUTPUTS_MAX = 10**8
"""The longest axis that a layer may add: one number for each has 400 MB."""


class PreparingLayer(Layer):
    """Base of layers that prepare data. Called with arrays they compute at once, as in `Dataset.map`."""

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the layer's output for an array, or a symbolic one for the input of a functional model."""
        given = inputs if isinstance(inputs, list | tuple) and inputs else [inputs]
        if isinstance(given[0], SymbolicTensor):
            return super().__call__(inputs, training)
        if self.takes_list:
            return self.at_once([self.as_input(each) for each in given], training)
        return self.at_once(self.as_input(inputs), training)

    def as_input(self, value: Any) -> Array:
        """Return a caller's value as an array: text and bytes as objects, numbers as the layer takes them."""
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            return value
        array = np.asarray(value)
        if array.dtype.kind in "OSU":
            return np.array(value, object)
        return array if self.any_dtype else as_float32(array, self.label)

    def at_once(self, inputs: Any, training: bool | None) -> Array:
        """Return the output for arrays that need not be batches."""
        result: Array = self.forward({}, inputs, Call(bool(training)))[0]
        return result


def batches_of(data: Any, where: str, batch_size: int | None, steps: int | None) -> Iterator[Array]:
    """Return arrays to learn from: a dataset's elements as they come, or an array's examples in batches.

    Args:
        data: an array of examples, or a dataset (or other iterable) of batches.
        where: names the reader in errors.
        batch_size: of an array; None: 32.
        steps: at most so many batches; None: all.
    """
    if isinstance(data, Iterable) and not isinstance(data, np.ndarray | list | tuple):
        found: Iterator[Any] = (_one_array(each, where) for each in data)
    else:
        array = np.asarray(data)
        examples = array if array.ndim else array[np.newaxis]
        size = batch_size or BATCH_SIZE
        found = (examples[start : start + size] for start in range(0, len(examples), size))
    return islice(found, steps)


def _one_array(element: Any, where: str) -> Array:
    if isinstance(element, tuple | dict):
        kind = type(element).__name__
        raise InputError(
            f"{where}: adapt: expected a dataset of arrays, found elements that are a {kind}; map it to what "
            "the layer reads first, as in dataset.map(lambda x, y: x)"
        )
    return np.asarray(element)
