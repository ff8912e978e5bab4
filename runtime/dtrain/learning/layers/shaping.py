"""Layers that rearrange, drop or pad values: Flatten, Reshape, Dropout, ..."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.arrays import Array, Shape, shape_text
from dtrain.learning.layers.base import Call, Layer


class _Rearranging(Layer):
    """A layer whose output has the input's elements in the same order."""

    any_dtype: ClassVar[bool] = True

    def forward(self, weights: Mapping[str, Array], x: Array, call: Call) -> tuple[Array, Any]:
        """The same elements in the new shape."""
        length = [-1 if n is None else n for n in self.output_shape(x.shape[1:])]
        return x.reshape(len(x), *length), x.shape

    def backward(self, weights: Mapping[str, Array], cache: Any, dy: Array, gradients: Mapping[str, Array], call: Call) -> Any:
        """Return dy in the input's shape."""
        return dy.reshape(cache)


@dataclass(eq=False)
class Flatten(_Rearranging):
    """All axes but the batch into one; an example without axes becomes [1]."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """The product of all lengths."""
        known = [n for n in input_shape if n is not None]
        return (prod(known) if len(known) == len(input_shape) else None,)


@dataclass(eq=False)
class Reshape(_Rearranging):
    """An example's elements in `target_shape`, in which one length may be -1."""

    target_shape: Sequence[int]

    def output_shape(self, input_shape: Shape) -> Shape:
        """The target shape with -1 worked out."""
        target = tuple(self.target_shape)
        if any(n is None for n in input_shape):
            return tuple(None if n == -1 else n for n in target)
        size, known = prod(n for n in input_shape if n is not None), prod(n for n in target if n != -1)
        free = target.count(-1)
        if free > 1 or (size % known if free else size != known):
            raise InputError(f"{self.label}: {shape_text(input_shape)} cannot become {shape_text(target)}")
        return tuple(size // known if n == -1 else n for n in target)


@dataclass(eq=False)
class Dropout(Layer):
    """While training, sets the fraction `rate` of the values to 0 and scales the rest by 1 / (1 - rate).

    Along axes where `noise_shape` has 1 (counted with the batch axis as 0; None is the input's length) whole lines are dropped.
    """

    rate: float
    noise_shape: Sequence[int | None] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise SpecError(f"{self.label}: rate: expected a number from 0 to 1, found {self.rate}")

    def forward(self, weights: Mapping[str, Array], x: Array, call: Call) -> tuple[Array, Any]:
        """x, or x times a random mask."""
        if not call.training or self.rate == 0:
            return x, None
        if call.rng is None:
            raise SpecError(f"{self.label}: training needs a random generator")
        shape = x.shape if self.noise_shape is None else [n or length for n, length in zip(self.noise_shape, x.shape, strict=True)]
        kept = call.rng.random(shape, np.float32) >= self.rate
        mask = kept * np.float32(1 / (1 - self.rate) if self.rate < 1 else 0)
        return x * mask, mask

    def backward(self, weights: Mapping[str, Array], cache: Any, dy: Array, gradients: Mapping[str, Array], call: Call) -> Any:
        """Return dy times the same mask."""
        return dy if cache is None else dy * cache
