"""Layers that change values by chance while training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call, Layer
from dtrain.types import Array, Arrays, Shape


class _Dropping(Layer):
    """A layer that drops values while training, unless its `rate` is 0."""

    supports_masking = True

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise SpecError(f"{self.label}: rate: expected a number from 0 to 1, found {self.rate}")

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Multiply by 0 or 1 / (1 - rate), while training."""
        if not call.training or self.rate == 0:
            return x, None
        noise = dropout_mask(self._generator(call), self._shape(x.shape), self.rate)
        return x * noise, noise

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Multiply by what was drawn in `forward`."""
        return dy if cache is None else dy * cache

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is drawn for a batch of `shape`."""
        raise NotImplementedError


@dataclass(eq=False)
class Dropout(_Dropping):
    """A layer that sets the fraction `rate` of the values to 0 while training, and scales the rest by 1 / (1
    - rate).

    Along axes where `noise_shape` has 1 (counted with the batch axis as 0; None is the input's length) whole
    lines are dropped.

    The shape stays. Draws follow from the run's seed, the batch and its part, so they are the same in
    whichever replica.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: 1 along the axes whose lines are dropped whole, counted with the batch axis as 0; None is
            the input's length.
        seed: a number from which this one draws, in place of the model's seed; None: the model's.
    """

    rate: float
    noise_shape: Sequence[int | None] | None = None
    seed: int | None = None

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.noise_shape is None:
            return shape
        return tuple(n or length for n, length in zip(self.noise_shape, shape, strict=True))


def dropout_mask(rng: np.random.Generator, shape: tuple[int, ...], rate: float) -> Array:
    """Return 0 at a fraction `rate` of the places, and 1 / (1 - rate) at the others."""
    kept = rng.random(shape, np.float32) >= rate
    return kept * np.float32(1 / (1 - rate) if rate < 1 else 0)


class _SpatialDropout(_Dropping):
    RANK: ClassVar[int]

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        self.expect(len(input_shape) == self.RANK + 1, f"{self.RANK + 2} axes", input_shape)
        return input_shape

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *[1] * self.RANK, shape[-1])


@dataclass(eq=False)
class SpatialDropout1D(_SpatialDropout):
    """Dropout of whole channels of series [batch, length, channels]. The shape stays.

    Args:
        rate: the fraction of the channels, from 0 to 1.
    """

    RANK: ClassVar[int] = 1

    rate: float


@dataclass(eq=False)
class SpatialDropout2D(_SpatialDropout):
    """Dropout of whole channels of images [batch, height, width, channels]. The shape stays.

    Args:
        rate: the fraction of the channels, from 0 to 1.
    """

    RANK: ClassVar[int] = 2

    rate: float


@dataclass(eq=False)
class GaussianNoise(Layer):
    """A layer that adds normal noise while training. The shape stays.

    Args:
        stddev: the noise's standard deviation.
        seed: has no effect: draws follow from the model's seed.
    """

    supports_masking = True

    stddev: float
    seed: int | None = None

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return x, or x plus noise."""
        if not call.training:
            return x, None
        noise = self._generator(call).standard_normal(x.shape, np.float32)
        return x + noise * np.float32(self.stddev), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy."""
        return dy
