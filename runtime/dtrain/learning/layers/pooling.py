"""Pooling: the maximum or average of each window, or of everything."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.learning.layers.base import Call, Layer
from dtrain.learning.layers.windows import Lengths, Windows, require_channels_last, window_counts
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class _Pooling(Layer):
    """Base of the pooling layers. `strides` None means the size of the window."""

    RANK: ClassVar[int]

    pool_size: Lengths = 2
    strides: Lengths | None = None
    padding: str = "valid"
    data_format: str | None = None

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        strides = self.pool_size if self.strides is None else self.strides
        self.windows = Windows.of(self.RANK, self.label, self.pool_size, strides, self.padding)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return one place for each window."""
        return (*window_counts(self, self.windows, input_shape), input_shape[-1])


class _MaxPooling(_Pooling):
    """The maximum of each window; margins never win."""

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the maximum over the places of a window."""
        wide = self.windows.padded(x, -np.inf, call)
        y = call.scratch("y", (len(x), *self.windows.lengths_within(wide), x.shape[-1]))
        y.fill(-np.inf)
        for place in self.windows.places(wide):
            np.maximum(y, place, out=y)
        return y, (wide, x.shape, y)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy at the first place of each window that holds its maximum."""
        wide, shape, y = cache
        dwide = call.scratch("dwide", wide.shape)
        dwide.fill(0)
        open_windows = np.ones(y.shape, bool)
        for place, dplace in zip(self.windows.places(wide), self.windows.places(dwide), strict=True):
            hit = (place == y) & open_windows
            open_windows ^= hit
            if self.windows.overlap:
                dplace += dy * hit
            else:
                np.multiply(dy, hit, out=dplace)
        return self.windows.unpadded(dwide, shape)


class _AveragePooling(_Pooling):
    """The average of each window, over the places that are not margin."""

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the sum over the places of a window, divided by their number."""
        wide = self.windows.padded(x, 0, call)
        y = np.zeros((len(x), *self.windows.lengths_within(wide), x.shape[-1]), np.float32)
        for place in self.windows.places(wide):
            y += place
        counts = self._counts(x.shape[1:-1])
        y /= counts
        return y, (wide.shape, x.shape, counts)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy / count at every place of each window."""
        wide_shape, shape, counts = cache
        dwide = call.scratch("dwide", wide_shape)
        dwide.fill(0)
        share = dy / counts
        for dplace in self.windows.places(dwide):
            dplace += share
        return self.windows.unpadded(dwide, shape)

    def _counts(self, lengths: tuple[int, ...]) -> Array:
        inside = self.windows.padded(np.ones((1, *lengths, 1), np.float32), 0, Call())
        return np.asarray(sum(self.windows.places(inside)))


class MaxPooling1D(_MaxPooling):
    """The maximum of windows over [batch, length, channels].

    Shapes: [batch, length, channels] becomes [batch, new length, channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        pool_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each; None: as `pool_size`.
        padding: ``valid``: windows lie within the input; ``same``: margins are added, which count for
            nothing.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 1


class MaxPooling2D(_MaxPooling):
    """The maximum of windows over [batch, height, width, channels].

    Shapes: [batch, height, width, channels] becomes [batch, new height, new width, channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        pool_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each; None: as `pool_size`.
        padding: ``valid``: windows lie within the input; ``same``: margins are added, which count for
            nothing.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 2


class AveragePooling1D(_AveragePooling):
    """The average of windows over [batch, length, channels].

    Shapes: [batch, length, channels] becomes [batch, new length, channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        pool_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each; None: as `pool_size`.
        padding: ``valid``: windows lie within the input; ``same``: margins are added, which count for
            nothing.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 1


class AveragePooling2D(_AveragePooling):
    """The average of windows over [batch, height, width, channels].

    Shapes: [batch, height, width, channels] becomes [batch, new height, new width, channels].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        pool_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each; None: as `pool_size`.
        padding: ``valid``: windows lie within the input; ``same``: margins are added, which count for
            nothing.
        data_format: ``channels_last`` or None, which is the same; others are refused.
    """

    RANK: ClassVar[int] = 2


@dataclass(eq=False)
class _GlobalPooling(Layer):
    RANK: ClassVar[int]

    data_format: str | None = None
    keepdims: bool = False

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        self._axes = tuple(range(1, self.RANK + 1))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the channels, after axes of length 1 if `keepdims`."""
        self.expect(len(input_shape) == self.RANK + 1, f"{self.RANK + 2} axes", input_shape)
        return (*[1] * self.RANK, input_shape[-1]) if self.keepdims else (input_shape[-1],)


class _GlobalAveragePooling(_GlobalPooling):
    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the mean, over one axis that of what the mask leaves."""
        if call.mask is None or self.RANK > 1:
            return x.mean(axis=self._axes, keepdims=self.keepdims), (x.shape, np.float32(1))
        there = call.mask[..., np.newaxis] / np.maximum(call.mask.sum(axis=1), 1)[:, np.newaxis, np.newaxis]
        there = there.astype(np.float32)
        return (x * there).sum(axis=1, keepdims=self.keepdims), (x.shape, there * np.float32(x.shape[1]))

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return an equal share of dy everywhere, or where the mask leaves something."""
        shape, there = cache
        batch, *lengths, channels = shape
        share = dy.reshape(batch, *[1] * self.RANK, channels) / np.float32(np.prod(lengths))
        return np.broadcast_to(share * there, shape).copy()


class _GlobalMaxPooling(_GlobalPooling):
    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the maximum."""
        return x.max(axis=self._axes, keepdims=self.keepdims), x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy shared equally between the places that hold the maximum, as tf.reduce_max does."""
        hits = (cache == cache.max(axis=self._axes, keepdims=True)).astype(np.float32)
        hits /= hits.sum(axis=self._axes, keepdims=True)
        hits *= dy.reshape(len(cache), *[1] * self.RANK, cache.shape[-1])
        return hits


class GlobalAveragePooling1D(_GlobalAveragePooling):
    """The average over the length; where there is a mask, of what it leaves.

    Shapes: [batch, length, channels] becomes [batch, channels]; with `keepdims` the other axes stay, with
    length 1.

    Args:
        data_format: ``channels_last`` or None, which is the same; others are refused.
        keepdims: whether the axes that were reduced stay, with length 1.
    """

    RANK: ClassVar[int] = 1


class GlobalAveragePooling2D(_GlobalAveragePooling):
    """The average over height and width.

    Shapes: [batch, height, width, channels] becomes [batch, channels]; with `keepdims` the other axes stay,
    with length 1.

    Args:
        data_format: ``channels_last`` or None, which is the same; others are refused.
        keepdims: whether the axes that were reduced stay, with length 1.
    """

    RANK: ClassVar[int] = 2


class GlobalMaxPooling1D(_GlobalMaxPooling):
    """The maximum over the length.

    Shapes: [batch, length, channels] becomes [batch, channels]; with `keepdims` the other axes stay, with
    length 1.

    Args:
        data_format: ``channels_last`` or None, which is the same; others are refused.
        keepdims: whether the axes that were reduced stay, with length 1.
    """

    RANK: ClassVar[int] = 1


class GlobalMaxPooling2D(_GlobalMaxPooling):
    """The maximum over height and width.

    Shapes: [batch, height, width, channels] becomes [batch, channels]; with `keepdims` the other axes stay,
    with length 1.

    Args:
        data_format: ``channels_last`` or None, which is the same; others are refused.
        keepdims: whether the axes that were reduced stay, with length 1.
    """

    RANK: ClassVar[int] = 2
