"""Layers that change values by chance while training, and one that only adds a penalty."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.regularizers import L1L2, Regularizer
from dtrain.learning.layers.base import Call, Layer
from dtrain.types import Array, Arrays, Shape


class _TimesNoise(Layer):
    """A layer that multiplies by noise while training, unless its `rate` is 0."""

    supports_masking = True

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise SpecError(f"{self.label}: rate: expected a number from 0 to 1, found {self.rate}")

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Multiply, while training."""
        if not call.training or self.rate == 0:
            return x, None
        noise = self._noise(self._generator(call), x.shape)
        return x * noise, noise

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Multiply by what was drawn in `forward`."""
        return dy if cache is None else dy * cache

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError


@dataclass(eq=False)
class Dropout(_TimesNoise):
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

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if self.noise_shape is not None:
            shape = tuple(n or length for n, length in zip(self.noise_shape, shape, strict=True))
        return dropout_mask(rng, shape, self.rate)


def dropout_mask(rng: np.random.Generator, shape: tuple[int, ...], rate: float) -> Array:
    """Return 0 at a fraction `rate` of the places, and 1 / (1 - rate) at the others."""
    kept = rng.random(shape, np.float32) >= rate
    return kept * np.float32(1 / (1 - rate) if rate < 1 else 0)


class _SpatialDropout(_TimesNoise):
    RANK: ClassVar[int]

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        self.expect(len(input_shape) == self.RANK + 1, f"{self.RANK + 2} axes", input_shape)
        return input_shape

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return dropout_mask(rng, (shape[0], *[1] * self.RANK, shape[-1]), self.rate)


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
class GaussianDropout(_TimesNoise):
    """A layer that multiplies by normal noise of mean 1 and variance rate / (1 - rate) while training.

    The shape stays.

    Args:
        rate: as of `Dropout`, below 1.
        seed: has no effect: draws follow from the model's seed.
    """

    rate: float
    seed: int | None = None

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        deviation = np.float32(sqrt(self.rate / (1 - self.rate))) if self.rate < 1 else np.float32(0)
        return rng.standard_normal(shape, np.float32) * deviation + 1


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


# Klambauer et al. 2017: the value that selu gives to very negative numbers
_SELU_LEAST = -1.0507009873554805 * 1.6732632423543772


@dataclass(eq=False)
class AlphaDropout(_TimesNoise):
    """Dropout after selu, by which mean and variance stay (Klambauer et al., 2017). The shape stays.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: 1 along the axes whose lines are dropped whole, counted with the batch axis as 0; None is
            the input's length.
        seed: has no effect: draws follow from the model's seed.
    """

    rate: float
    noise_shape: Sequence[int | None] | None = None
    seed: int | None = None

    _noise = Dropout._noise

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return x, or x with selu's least value at some places, scaled and shifted."""
        _, noise = super().forward(weights, x, call)
        if noise is None or self.rate == 1:
            return x, None
        kept = (noise > 0).astype(np.float32)
        scale = np.float32(((1 - self.rate) * (1 + self.rate * _SELU_LEAST**2)) ** -0.5)
        shift = -scale * np.float32(_SELU_LEAST * self.rate)
        kept *= scale
        return x * kept + np.float32(_SELU_LEAST) * (scale - kept) + shift, kept


@dataclass(eq=False)
class ActivityRegularization(Layer):
    """A layer that hands on its input, and adds a penalty on it to the loss, a share for each example.

    Args:
        l1: the factor of the sum of absolute values.
        l2: the factor of the sum of squares.
    """

    supports_masking = True

    l1: float = 0.0
    l2: float = 0.0

    def activity_penalty(self) -> Regularizer | None:
        """Return the penalty."""
        return L1L2(self.l1, self.l2)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Hand x on."""
        return x, None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Hand dy on."""
        return dy
