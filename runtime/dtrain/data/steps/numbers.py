"""Numbers without end: counted, or drawn by their place. Source: `tf.data.Dataset.counter` and `random`."""

from typing import Any

import numpy as np

from dtrain.data.node import INFINITE, Iteration, Node
from dtrain.data.steps.chance import generator_of
from dtrain.data.structure import Element, TensorSpec

RANDOM_BELOW = 2**32


class Counted(Node):
    """Start, start + step, start + 2 * step and so on."""

    addressable = True
    cardinality = INFINITE

    def __init__(self, start: Any, step: Any, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._start = start
        self._step = step

    @property
    def spec(self) -> Any:
        return TensorSpec((), self._dtype.name)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._dtype.type(self._start + index * self._step)


class RandomNumbers(Node):
    """int64 numbers from 0 on, below 2^32; number k follows from (seed, iteration, k)."""

    addressable = True
    cardinality = INFINITE

    def __init__(self, seed: int, rerandomize: bool) -> None:
        self._seed = seed
        self._rerandomize = rerandomize

    @property
    def spec(self) -> Any:
        return TensorSpec((), "int64")

    def element(self, index: int, iteration: Iteration) -> Element:
        place = iteration if self._rerandomize else ()
        return np.int64(generator_of(self._seed, place, index).integers(RANDOM_BELOW))
