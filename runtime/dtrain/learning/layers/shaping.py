"""Layers that rearrange, drop or pad values: Flatten, Reshape, Dropout, ..."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import shape_text
from dtrain.learning.layers.base import Call, Layer
from dtrain.learning.layers.windows import require_channels_last
from dtrain.types import Array, Arrays, Shape


class _Rearranging(Layer):
    """A layer whose output has the input's elements in the same order."""

    any_dtype: ClassVar[bool] = True

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the same elements in the new shape."""
        length = [-1 if n is None else n for n in self.output_shape(x.shape[1:])]
        return x.reshape(len(x), *length), x.shape

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy in the input's shape."""
        return dy.reshape(cache)


@dataclass(eq=False)
class Flatten(_Rearranging):
    """All axes but the batch into one; an example without axes becomes [1].

    Shapes: [batch, a, b, ...] becomes [batch, a * b * ...].
    """

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the product of all lengths."""
        known = [n for n in input_shape if n is not None]
        return (prod(known) if len(known) == len(input_shape) else None,)


@dataclass(eq=False)
class Reshape(_Rearranging):
    """An example's elements in `target_shape`, in which one length may be -1.

    Shapes: [batch, ...] becomes [batch, *target_shape].

    Args:
        target_shape: the new shape of an example, without the batch axis.

    Raises:
        InputError: the number of elements is another.
    """

    target_shape: Sequence[int]

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the target shape with -1 worked out."""
        target = tuple(self.target_shape)
        if any(n is None for n in input_shape):
            return tuple(None if n == -1 else n for n in target)
        size = prod(n for n in input_shape if n is not None)
        known = prod(n for n in target if n != -1)
        free = target.count(-1)
        if free > 1 or (size % known if free else size != known):
            raise InputError(
                f"{self.label}: expected an input with as many elements as {shape_text(target)}, "
                f"found {shape_text(input_shape)}"
            )
        return tuple(size // known if n == -1 else n for n in target)


@dataclass(eq=False)
class Dropout(Layer):
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

    supports_masking = True

    rate: float
    noise_shape: Sequence[int | None] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise SpecError(f"{self.label}: rate: expected a number from 0 to 1, found {self.rate}")

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return x, or x times a random mask."""
        if not call.training or self.rate == 0:
            return x, None
        shape = x.shape
        if self.noise_shape is not None:
            shape = tuple(n or length for n, length in zip(self.noise_shape, shape, strict=True))
        mask = dropout_mask(self._generator(call), shape, self.rate)
        return x * mask, mask

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times the same mask."""
        return dy if cache is None else dy * cache


def dropout_mask(rng: np.random.Generator, shape: tuple[int, ...], rate: float) -> Array:
    """Return 0 at a fraction `rate` of the places, and 1 / (1 - rate) at the others."""
    kept = rng.random(shape, np.float32) >= rate
    return kept * np.float32(1 / (1 - rate) if rate < 1 else 0)


@dataclass(eq=False)
class Masking(Layer):
    """A layer that masks times at which every feature is `mask_value`.

    Recurrent layers skip them, and losses and metrics do not count them.

    Shapes: [batch, time, features] stays, and has a mask [batch, time].

    Args:
        mask_value: the number that stands for nothing.
    """

    mask_value: float = 0.0

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where any feature is another."""
        return (inputs != np.float32(self.mask_value)).any(axis=-1)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return x, 0 where it is masked."""
        there = self.compute_mask(x)[..., np.newaxis]
        return x * there, there

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy, 0 where x is masked."""
        return dy * cache


@dataclass(eq=False)
class Permute(Layer):
    """An example's axes in another order; `dims` counts them from 1, as Keras does.

    Args:
        dims: the numbers of the axes, counted from 1, in their new order.
    """

    any_dtype: ClassVar[bool] = True

    dims: Sequence[int]

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the lengths in the new order."""
        self.expect(
            sorted(self.dims) == list(range(1, len(input_shape) + 1)),
            f"an input with the axes {self.dims}",
            input_shape,
        )
        return tuple(input_shape[axis - 1] for axis in self.dims)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return a view."""
        return x.transpose(0, *self.dims), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy in the order before."""
        return dy.transpose(0, *(self.dims.index(axis) + 1 for axis in range(1, dy.ndim)))


@dataclass(eq=False)
class RepeatVector(Layer):
    """A layer that repeats a vector: [batch, features] as [batch, n, features].

    Args:
        n: how often.
    """

    n: int

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape with one more axis in front."""
        self.expect(len(input_shape) == 1, "2 axes: batch, features", input_shape)
        return (self.n, *input_shape)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the repeated vectors."""
        return np.repeat(x[:, np.newaxis], self.n, axis=1), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the sum over the repetitions."""
        return dy.sum(axis=1)


@dataclass(eq=False)
class ZeroPadding2D(Layer):
    """Zeros around images.

    Shapes: [batch, height, width, channels] becomes [batch, top + height + bottom, left + width + right,
    channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        padding: n for all sides, (vertical, horizontal), or ((top, bottom), (left, right)).
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    padding: int | Sequence[Any] = 1
    data_format: str | None = None

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        both = [self.padding] * 2 if isinstance(self.padding, int) else list(self.padding)
        pairs = [(each, each) if isinstance(each, int) else tuple(each) for each in both]
        if len(pairs) != 2 or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
            raise SpecError(
                f"{self.label}: padding: expected n, (n, n) or ((n, n), (n, n)), found {self.padding!r}"
            )
        self.margins = pairs

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return height and width with the margins."""
        self.expect(len(input_shape) == 3, "4 axes: batch, height, width, channels", input_shape)
        lengths = zip(input_shape, self.margins, strict=False)
        return (*(None if n is None else n + sum(margin) for n, margin in lengths), input_shape[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the padded images."""
        return np.pad(x, [(0, 0), *self.margins, (0, 0)]), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy without its margins."""
        inner = (
            slice(before, length - after)
            for (before, after), length in zip(self.margins, dy.shape[1:], strict=False)
        )
        return dy[(slice(None), *inner)]


@dataclass(eq=False)
class UpSampling2D(Layer):
    """Every pixel repeated `size` times in height and width.

    Shapes: [batch, height, width, channels] becomes [batch, height * size, width * size, channels].

    Differs from Keras: the interpolation is ``nearest`` alone, and channels are the last axis.

    Args:
        size: one number for both axes, or one each.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    size: int | Sequence[int] = 2
    data_format: str | None = None

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        self._size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return height and width times the size."""
        self.expect(len(input_shape) == 3, "4 axes: batch, height, width, channels", input_shape)
        lengths = zip(input_shape, self._size, strict=False)
        return (*(None if n is None else n * times for n, times in lengths), input_shape[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the larger images."""
        return x.repeat(self._size[0], axis=1).repeat(self._size[1], axis=2), x.shape

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the sum over the repetitions."""
        batch, height, width, channels = cache
        return dy.reshape(batch, height, self._size[0], width, self._size[1], channels).sum(axis=(2, 4))
