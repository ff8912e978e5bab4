"""Discretization: numbers to the integers of the bins in which they lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dtrain.data.distribution.once import learned_once
from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.preprocessing.category_layer import CategoryLayer
from dtrain.learning.layers.preprocessing.preparing_layer import batches_of
from dtrain.types import Array


@dataclass(eq=False)
class Discretization(CategoryLayer):
    """The number of the bin in which a value lies: bin i holds values from boundary i - 1 (included) to i.

    Either `bin_boundaries` are given, or `adapt` learns `num_bins` of them: quantiles of the data, to within
    `epsilon`, by Keras's summary, whose memory does not grow with the data.

    Differs from Keras: a layer that has neither learned nor been given boundaries refuses data.

    Args:
        bin_boundaries: ascending; the bins are one more.
        num_bins: how many bins `adapt` learns.
        epsilon: how far off a quantile may be, as a fraction of the data.
        output_mode: ``int``, ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.
    """

    bin_boundaries: Sequence[float] | None = None
    num_bins: int | None = None
    epsilon: float = 0.01
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        if self.num_bins is not None:
            if self.bin_boundaries is not None:
                raise SpecError(f"{self.label}: expected bin_boundaries or num_bins, found both")
            self.expect_size(num_bins=self.num_bins)
        if not 0 < self.epsilon < 1:
            raise SpecError(f"{self.label}: epsilon: expected a number between 0 and 1, found {self.epsilon}")
        if self.bin_boundaries is not None:
            self._set(list(self.bin_boundaries))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments; learned boundaries stand in the place of their number."""
        config = super().get_config()
        return config if self.bin_boundaries is None else config | {"num_bins": None}

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the boundaries from an array, or a dataset of batches.

        One task of a run does it for all; see `data.distribution.once`.
        """
        if self.num_bins is None:
            raise SpecError(f"{self.label}: adapt: expected num_bins in the constructor, found none")
        settings = f"num_bins {self.num_bins}, epsilon {self.epsilon}, {batch_size}, {steps}"

        def learned() -> list[float]:
            return self._learned(data, batch_size, steps)

        self._set(learned_once(type(self).__name__, settings, learned))

    def _learned(self, data: Any, batch_size: int | None, steps: int | None) -> list[float]:
        summary = np.zeros((2, 0), np.float32)
        for batch in batches_of(data, self.label, batch_size, steps):
            summary = _merged(_summary(as_float32(batch, self.label), self.epsilon), summary, self.epsilon)
        if not summary.size:
            raise InputError(f"{self.label}: adapt: expected at least one example, found none")
        assert self.num_bins is not None
        boundaries: list[float] = _compressed(summary, 1.0 / self.num_bins)[0, :-1].tolist()
        return boundaries

    def _set(self, boundaries: list[float]) -> None:
        if any(low > high for low, high in pairwise(boundaries)):
            raise SpecError(
                f"{self.label}: bin_boundaries: expected them in ascending order, found {boundaries}"
            )
        self.bin_boundaries = boundaries
        self._boundaries = np.array(boundaries, np.float32)

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        if self.bin_boundaries is None:
            raise SpecError(f"{self.label}: has no bin_boundaries; give them, or call adapt(data) first")
        return len(self.bin_boundaries) + 1

    def integers(self, x: Array) -> Array:
        """Return the numbers of the bins."""
        values = x if x.dtype.kind == "f" else as_float32(x, self.label)
        bins = self.depth and np.searchsorted(self._boundaries, values, side="right")
        return np.asarray(bins, np.int64)


def _summary(values: Array, epsilon: float) -> Array:
    """Return values at equal distances in their order, and how many each stands for."""
    ordered = np.sort(values.reshape(-1))
    increment = int(np.float32(ordered.size) / np.float32(1.0 / epsilon))
    step = max(increment, 1)
    kept = ordered[increment::step]
    return np.stack([kept, np.full_like(kept, step)])


def _merged(first: Array, second: Array, epsilon: float) -> Array:
    both = np.concatenate((first, second), axis=1)
    return _compressed(both[:, np.argsort(both[0], kind="stable")], epsilon)


def _compressed(summary: Array, epsilon: float) -> Array:
    """Return a summary of about 1 / epsilon values, interpolated by the cumulative weights."""
    if summary.shape[1] * epsilon < 1:
        return summary
    percents = epsilon + np.arange(0.0, 1.0, epsilon)
    cumulative = summary[1].cumsum()
    shares = cumulative / cumulative[-1]
    values = np.interp(percents, shares, summary[0])
    cumulative = np.interp(percents, shares, cumulative)
    weights = cumulative - np.concatenate((np.array([0]), cumulative[:-1]))
    return np.stack((values, weights)).astype(np.float32)
