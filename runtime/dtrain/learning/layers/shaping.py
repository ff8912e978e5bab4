"""Layers that rearrange, mask, cut or pad values: Flatten, Reshape, Masking, ..."""

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


class _Margins(Layer):
    """Base of layers that add margins (`SIGN` 1, `padding`) or cut them (-1, `cropping`).

    `margins` are (before, after) of each axis but the channels'.
    """

    RANK: ClassVar[int]
    SIGN: ClassVar[int]

    def __post_init__(self) -> None:
        require_channels_last(self.label, getattr(self, "data_format", None))
        name = "padding" if self.SIGN > 0 else "cropping"
        given = getattr(self, name)
        each = [given] * self.RANK if isinstance(given, int) else list(given)
        if self.RANK == 1 and len(each) == 2:
            each = [each]
        self.margins: list[tuple[int, int]] = [
            (one, one) if isinstance(one, int) else tuple(one) for one in each
        ]
        if len(self.margins) != self.RANK or any(len(pair) != 2 or min(pair) < 0 for pair in self.margins):
            forms = "n or (n, n)" if self.RANK == 1 else "n, (n, n) or ((n, n), (n, n))"
            raise SpecError(f"{self.label}: {name}: expected {forms}, found {given!r}")

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the lengths with the margins, or without."""
        rank = self.RANK
        axes = "batch, time, features" if rank == 1 else "batch, height, width, channels"
        self.expect(len(input_shape) == rank + 1, f"{rank + 2} axes: {axes}", input_shape)
        lengths = [
            None if n is None else n + self.SIGN * sum(margin)
            for n, margin in zip(input_shape, self.margins, strict=False)
        ]
        self.expect(all(n is None or n > 0 for n in lengths), "an input longer than what is cut", input_shape)
        return (*lengths, input_shape[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the array with its margins, or without."""
        return self._moved(x, self.SIGN), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy without the margins, or with margins of zeros."""
        return self._moved(dy, -self.SIGN)

    def _moved(self, x: Array, sign: int) -> Array:
        if sign > 0:
            return np.pad(x, [(0, 0), *self.margins, (0, 0)])
        pairs = zip(self.margins, x.shape[1:], strict=False)
        return x[(slice(None), *(slice(before, length - after) for (before, after), length in pairs))]


@dataclass(eq=False)
class ZeroPadding1D(_Margins):
    """Zeros around series.

    Shapes: [batch, time, features] becomes [batch, before + time + after, features].

    Args:
        padding: n for both ends, or (before, after).
    """

    RANK: ClassVar[int] = 1
    SIGN: ClassVar[int] = 1

    padding: int | Sequence[int] = 1


@dataclass(eq=False)
class ZeroPadding2D(_Margins):
    """Zeros around images.

    Shapes: [batch, height, width, channels] becomes [batch, top + height + bottom, left + width + right,
    channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        padding: n for all sides, (vertical, horizontal), or ((top, bottom), (left, right)).
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 2
    SIGN: ClassVar[int] = 1

    padding: int | Sequence[Any] = 1
    data_format: str | None = None


@dataclass(eq=False)
class Cropping1D(_Margins):
    """Series without what lies at their ends.

    Shapes: [batch, time, features] becomes [batch, time - before - after, features].

    Args:
        cropping: n for both ends, or (before, after).
    """

    RANK: ClassVar[int] = 1
    SIGN: ClassVar[int] = -1

    cropping: int | Sequence[int] = (1, 1)


@dataclass(eq=False)
class Cropping2D(_Margins):
    """Images without what lies at their sides.

    Shapes: [batch, height, width, channels] becomes [batch, height - top - bottom, width - left - right,
    channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        cropping: n for all sides, (vertical, horizontal), or ((top, bottom), (left, right)).
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 2
    SIGN: ClassVar[int] = -1

    cropping: int | Sequence[Any] = ((0, 0), (0, 0))
    data_format: str | None = None


class _UpSampling(Layer):
    RANK: ClassVar[int]

    size: Any

    def __post_init__(self) -> None:
        require_channels_last(self.label, getattr(self, "data_format", None))
        self._sizes = [self.size] * self.RANK if isinstance(self.size, int) else list(self.size)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the lengths times the sizes."""
        self.expect(len(input_shape) == self.RANK + 1, f"{self.RANK + 2} axes, channels last", input_shape)
        lengths = zip(input_shape, self._sizes, strict=False)
        return (*(None if n is None else n * times for n, times in lengths), input_shape[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the longer series, or larger images."""
        shape = x.shape
        for axis, times in enumerate(self._sizes, start=1):
            x = x.repeat(times, axis=axis)
        return x, shape

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the sum over the repetitions."""
        batch, *lengths, channels = cache
        pairs = [each for pair in zip(lengths, self._sizes, strict=True) for each in pair]
        return dy.reshape(batch, *pairs, channels).sum(axis=tuple(range(2, 2 + len(pairs), 2)))


@dataclass(eq=False)
class UpSampling1D(_UpSampling):
    """Every time repeated `size` times.

    Shapes: [batch, time, features] becomes [batch, time * size, features].

    Args:
        size: how often.
    """

    RANK: ClassVar[int] = 1

    size: int = 2


@dataclass(eq=False)
class UpSampling2D(_UpSampling):
    """Every pixel repeated `size` times in height and width.

    Shapes: [batch, height, width, channels] becomes [batch, height * size, width * size, channels].

    Differs from Keras: the interpolation is ``nearest`` alone, and channels are the last axis.

    Args:
        size: one number for both axes, or one each.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 2

    size: int | Sequence[int] = 2
    data_format: str | None = None
