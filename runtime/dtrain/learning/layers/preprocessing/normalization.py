"""Normalization: values less their mean, divided by their deviation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from dtrain.data.distribution.once import learned_once
from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.preparing_layer import PreparingLayer, batches_of
from dtrain.types import Array, Arrays

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

        def learned() -> list[Any]:
            return self._learned(batches_of(data, self.label, batch_size or EXAMPLES_MAX, steps))

        self.mean, self.variance = learned_once(type(self).__name__, settings, learned)

    def _learned(self, batches: Iterable[Array]) -> list[Any]:
        """Return mean and variance over all batches, each of which is held alone."""
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
        return [np.asarray(mean).tolist(), np.asarray(squares / count).tolist()]

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
            lengths = iter(mean.shape)
            shape = [next(lengths) if axis in kept else 1 for axis in range(rank)]
            mean = mean.reshape(shape)
            variance = variance.reshape(shape)
        return mean, np.maximum(np.sqrt(variance), _EPSILON)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the normalized values."""
        mean, deviation = self.mean_and_deviation(x.ndim)
        return (x * deviation + mean if self.invert else (x - mean) / deviation), deviation

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy divided (or, inverted, multiplied) by the deviation."""
        return dy * cache if self.invert else dy / cache
