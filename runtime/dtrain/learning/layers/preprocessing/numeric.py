"""The base of layers that prepare data, and those of numbers: Rescaling and Normalization."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from dtrain.data.distribution.once import learned_once
from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.core.results import result_of
from dtrain.learning.layers.base import Call, Layer, SymbolicTensor
from dtrain.learning.layers.normalization import along
from dtrain.types import Array, Arrays

BATCH_SIZE = 32
"""Examples of an array that are learned from at once, where `adapt` is not told."""
OUTPUTS_MAX = 10**8
"""The longest axis that a layer may add: one number for each has 400 MB."""


class PreparingLayer(Layer):
    """Base of layers that prepare data. Called with arrays they compute at once, as in `Dataset.map`."""

    def __call__(  # type: ignore[override]
        self, inputs: Any, training: bool | None = None
    ) -> Any:
        """Return the layer's output for an array, or a symbolic one for the input of a functional model."""
        given = inputs if isinstance(inputs, list | tuple) and inputs else [inputs]
        if isinstance(given[0], SymbolicTensor):
            return super().__call__(inputs, training)
        if self.takes_list:
            return result_of(self.at_once([self.as_input(each) for each in given], training))
        return result_of(self.at_once(self.as_input(inputs), training))

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

    def _learned_by_one(
        self,
        settings: str,
        learn: Callable[[Iterator[Array]], list[Any]],
        data: Any,
        batch_size: int | None,
        steps: int | None,
    ) -> list[Any]:
        """Return what `learn` makes of the batches of `data`; one task of a run calls it for all."""
        return learned_once(
            type(self).__name__,
            settings,
            lambda: learn(batches_of(data, self.label, batch_size, steps)),
        )


def batches_of(data: Any, where: str, batch_size: int | None, steps: int | None) -> Iterator[Array]:
    """Yield a dataset's elements as they come, or an array's examples in batches; at most `steps` of them."""
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


@dataclass(eq=False)
class Rescaling(PreparingLayer):
    """A layer that computes ``x * scale + offset``. The shape stays.

    Args:
        scale: a number, or one for each place of the last axis.
        offset: a number, or one for each place of the last axis.
    """

    scale: float | Sequence[float]
    offset: float | Sequence[float] = 0.0

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the rescaled values."""
        return x * np.asarray(self.scale, np.float32) + np.asarray(self.offset, np.float32), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy * scale."""
        return dy * np.asarray(self.scale, np.float32)


_EPSILON = np.float32(1e-7)
EXAMPLES_MAX = 1 << 16
"""Examples of an array whose moments are taken at once."""


@dataclass(eq=False)
class Normalization(PreparingLayer):
    """``(x - mean) / sqrt(variance)``, one mean for each place along `axis` (None: one for all).

    Mean and variance are given, or learned by `adapt`. With `invert` the layer does the reverse. Axes are
    counted with the batch axis as 0.

    The shape stays.

    Args:
        axis: the axis whose places have a mean each, or several, counted with the batch axis as 0; None: one
            for all.
        mean: given in place of `adapt`; the variance is given, too.
        variance: given in place of `adapt`.
        invert: whether the layer does the reverse.
    """

    axis: int | Sequence[int] | None = -1
    mean: float | Sequence[Any] | None = None
    variance: float | Sequence[Any] | None = None
    invert: bool = False

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.variance is None):
            raise SpecError(f"{self.label}: mean and variance must be given together")

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn mean and variance from an array of examples, or a dataset of batches of them.

        One task of a run does it for all; see `data.distribution.once`.
        """
        settings = f"axis {self.axis}, invert {self.invert}"
        learned = self._learned_by_one(settings, self._learned, data, batch_size or EXAMPLES_MAX, steps)
        self.mean, self.variance = (result_of(np.asarray(each)) for each in learned)

    def _learned(self, batches: Iterable[Array]) -> list[Any]:
        count, mean, squares = 0, np.float64(0), np.float64(0)
        for batch in batches:
            array = np.asarray(as_float32(batch, self.label), np.float64)
            kept = self._kept_axes(array.ndim)
            over = tuple(axis for axis in range(array.ndim) if axis not in kept)
            added = prod(array.shape[axis] for axis in over)
            if not array.size:
                continue
            own = array.mean(axis=over)
            squares = squares + array.var(axis=over) * added
            squares = squares + np.square(own - mean) * (count * added / (count + added))
            count += added
            mean = mean + (own - mean) * (added / count)
        if not count:
            raise InputError(f"{self.label}: adapt: expected at least one example, found none")
        shape = [array.shape[axis] if axis in kept else 1 for axis in range(array.ndim)]
        return [np.reshape(each, shape).tolist() for each in (mean, squares / count)]

    def _kept_axes(self, rank: int) -> list[int]:
        if self.axis is None:
            return []
        return sorted(axis % rank for axis in ([self.axis] if isinstance(self.axis, int) else self.axis))

    def mean_and_deviation(self, rank: int) -> tuple[Array, Array]:
        """Return what is subtracted and what divides, for `rank` axes; a `SpecError` if neither is known."""
        if self.mean is None:
            raise SpecError(
                f"{self.label}: has neither mean and variance nor been adapted; call adapt(data) first"
            )
        mean = np.asarray(self.mean, np.float32)
        variance = np.asarray(self.variance, np.float32)
        if mean.ndim == len(kept := self._kept_axes(rank)):
            mean, variance = along(mean, kept, rank), along(variance, kept, rank)
        return mean, np.maximum(np.sqrt(variance), _EPSILON)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the normalized values."""
        mean, deviation = self.mean_and_deviation(x.ndim)
        return (x * deviation + mean if self.invert else (x - mean) / deviation), deviation

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy divided (or, inverted, multiplied) by the deviation."""
        return dy * cache if self.invert else dy / cache
