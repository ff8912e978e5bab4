"""Layers of images: other sizes, windows, and random changes.

They take batches in a model, and batches or single images outside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, pi
from typing import Any, NamedTuple

import numpy as np

from dtrain.data.chance import element_chance
from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing import image_geometry as geometry
from dtrain.learning.layers.preprocessing.numeric import OUTPUTS_MAX, PreparingLayer
from dtrain.types import Array, Arrays, Shape


class Window(NamedTuple):
    """Rows and columns of images of a shape."""

    rows: slice
    columns: slice
    shape: tuple[int, ...]


def windowed_back(dy: Array, window: Window, method: str = "bilinear") -> Array:
    found = np.zeros(window.shape, np.float32)
    inner = found[:, window.rows, window.columns]
    inner[...] = geometry.resized_back(dy, inner.shape[1], inner.shape[2], method)
    return found


Range = float | Sequence[float]
_OUTSIDE = 1
"""The last word of seeds elsewhere: numpy takes a shorter seed for one that ends in zeros."""


class ImageLayer(PreparingLayer):
    """Base of layers of images [batch, height, width, channels]."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the same shape."""
        self.expect(len(input_shape) == 3, "4 axes: batch, height, width, channels", input_shape)
        return input_shape

    def at_once(self, inputs: Array, training: bool | None) -> Array:
        """Return the output for a batch of images, or for one image."""
        self.expect(inputs.ndim in (3, 4), "an image or a batch of them", f"shape {inputs.shape}")
        found: Array = self.of_batch(inputs if inputs.ndim == 4 else inputs[np.newaxis], training)
        return found if inputs.ndim == 4 else found[0]

    def of_batch(self, x: Array, training: bool | None) -> Array:
        """Return the output for a batch outside of a model."""
        found: Array = self.forward({}, x, Call(bool(training)))[0]
        return found

    def expect_image_size(self, height: Any, width: Any) -> None:
        """Raise a `SpecError` unless these may be an image's height and width."""
        self.expect_positive(height=height, width=width)
        if height * width > OUTPUTS_MAX:
            found = f"{height:.6g} * {width:.6g}"
            raise SpecError(f"{self.label}: height * width: expected at most {OUTPUTS_MAX}, found {found}")

    def range_of(self, name: str, value: Range, least: float, most: float) -> tuple[float, float]:
        """Return the lower and upper end of what is drawn: two numbers, or one and its negative."""
        ends = list(value) if isinstance(value, Sequence) else [-value, value]
        if len(ends) != 2 or not least <= ends[0] <= ends[1] <= most:
            raise SpecError(
                f"{self.label}: {name}: expected a number, or a lower and an upper one, from {least:g} to "
                f"{most:g}, found {value!r}"
            )
        return float(ends[0]), float(ends[1])


class RandomImageLayer(ImageLayer):
    """Base of layers that change images at random while training, and hand them on otherwise.

    Draws follow from where the layer is used, so that they are the same in whichever replica, and after a
    resume. In a model: from the run's seed, the batch and its part. In `Dataset.map`: from the map's seed,
    the iteration and the element's number. Elsewhere: from how often the layer was called. A layer with a
    `seed` draws from that in place of the run's or the map's, and layers of equal seeds draw the same.
    """

    seed: int | None
    _calls = 0

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return changed images, and a cache for `back`."""
        raise NotImplementedError

    def unchanged(self, x: Array) -> tuple[Array, Any]:
        """Return images outside of training, and a cache for `back`; None: they are the same."""
        return x, None

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        raise NotImplementedError

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return changed images in training."""
        if not call.training:
            return self.unchanged(x)
        return self.changed(x, self._own(self._generator(call)))

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        return dy if cache is None else self.back(cache, dy)

    def of_batch(self, x: Array, training: bool | None) -> Array:
        """Return changed images, unless `training` is False, as Keras does."""
        if training is False:
            return self.unchanged(x)[0]
        element = element_chance()
        if element is not None:
            return self.changed(x, element.generator(self, self.seed))[0]
        self._calls += 1
        words = [(self.seed or 0) % 2**32, self._calls, _OUTSIDE]
        return self.changed(x, np.random.default_rng(words))[0]

    def _own(self, rng: np.random.Generator) -> np.random.Generator:
        """Return a generator of the same address, but of this layer's seed if it has one."""
        if self.seed is None:
            return rng
        address = rng.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        words = address if isinstance(address, Sequence) else [address]
        return np.random.default_rng([self.seed % 2**32, *words])


class SizedImageLayer(ImageLayer):
    """Base of layers that return images of `height` and `width`."""

    height: int
    width: int

    def __post_init__(self) -> None:
        self.expect_image_size(self.height, self.width)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the new size."""
        return (self.height, self.width, super().output_shape(input_shape)[-1])

    def _largest_window(self, x: Array) -> Window:
        return Window(*geometry.window_of_aspect(x.shape[1], x.shape[2], self.height, self.width), x.shape)

    def _window_at(self, x: Array, top: int, left: int) -> Window:
        return Window(slice(top, top + self.height), slice(left, left + self.width), x.shape)

    def _cut(self, x: Array, window: Window, method: str = "bilinear") -> tuple[Array, Window]:
        found = geometry.resized(x[:, window.rows, window.columns], self.height, self.width, method)
        return np.ascontiguousarray(found), window


@dataclass(eq=False)
class CenterCrop(SizedImageLayer):
    """The middle, `height` by `width`; of smaller images the largest window of that aspect, resized.

    Shapes: [batch, height, width, channels], or one image without the batch axis, becomes one of `height` and
    `width`.

    Args:
        height: rows of the output.
        width: columns of the output.
    """

    height: int
    width: int

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the middle."""
        down, right = x.shape[1] - self.height, x.shape[2] - self.width
        if min(down, right) < 0:
            return self._cut(x, self._largest_window(x))
        return self._cut(x, self._window_at(x, down // 2, right // 2))

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the gradient by the whole images."""
        return windowed_back(dy, cache)


class ProjectingLayer(RandomImageLayer):
    """Base of layers that read each image through an affine map of its own."""

    fill_mode: str
    interpolation: str
    fill_value: float

    def check_filling(self) -> None:
        """Raise a `SpecError` for a fill mode or an interpolation that is not known."""
        self._expect_one_of("fill_mode", tuple(geometry.FILL_MODES))
        self._expect_one_of("interpolation", geometry.INTERPOLATIONS)

    def maps(self, count: int, height: int, width: int, rng: np.random.Generator) -> Array:
        """Return the numbers of each image's map [count, 6], float32."""
        raise NotImplementedError

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return the images read through maps that are drawn."""
        maps = self.maps(len(x), x.shape[1], x.shape[2], rng)
        return geometry.projected(x, maps, self.fill_mode, self.interpolation, self.fill_value), maps

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        return geometry.projected_back(dy, cache, self.fill_mode, self.interpolation)


def drawn(rng: np.random.Generator, ends: tuple[float, float], count: int) -> Array:
    return rng.uniform(*ends, count).astype(np.float32)


@dataclass(eq=False)
class RandomBrightness(RandomImageLayer):
    """Adds to each image a fraction of the range of values, between ±factor or two ends, and cuts to it.

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        factor: a number f, for -f to f, or a pair of ends, as fractions of the range of values.
        value_range: the smallest and the largest value.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
    """

    factor: Range
    value_range: Sequence[float] = (0, 255)
    seed: int | None = None

    def __post_init__(self) -> None:
        ends = sorted(self.factor) if isinstance(self.factor, Sequence) else abs(self.factor)
        self._ends = self.range_of("factor", ends, -1, 1)
        if not isinstance(self.value_range, Sequence) or len(self.value_range) != 2:
            raise SpecError(f"{self.label}: value_range: expected two numbers, found {self.value_range!r}")
        self._low, self._high = map(np.float32, sorted(self.value_range))

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return images of another brightness, and which values were not cut."""
        added = rng.uniform(*self._ends, (len(x), 1, 1, 1)).astype(np.float32) * (self._high - self._low)
        found = x + added
        return found.clip(self._low, self._high), (found >= self._low) & (found <= self._high)

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        found: Array = dy * cache
        return found


_MOST = np.float32(255)


@dataclass(eq=False)
class RandomContrast(RandomImageLayer):
    """``(x - mean) * c + mean`` within each channel, cut to 0 to 255; one c for all images of a batch.

    c lies between 1 - lower and 1 + upper, for `factor` a pair (lower, upper) or a number for both.

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        factor: a number, or the pair (lower, upper).
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
    """

    factor: Range
    seed: int | None = None

    def __post_init__(self) -> None:
        pair = list(self.factor) if isinstance(self.factor, Sequence) else [self.factor, self.factor]
        if len(pair) != 2 or not 0 <= pair[0] <= 1 or pair[1] < 0:
            raise SpecError(
                f"{self.label}: factor: expected a number from 0 to 1, or two of which the second may be "
                f"larger, found {self.factor!r}"
            )
        self._ends = (1 - pair[0], 1 + pair[1])

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return the images of another contrast."""
        return contrasted(x, np.float32(rng.uniform(*self._ends)))

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        contrast, kept = cache
        passing = dy * kept
        found: Array = contrast * passing + (1 - contrast) * passing.mean(axis=(1, 2), keepdims=True)
        return found


def contrasted(x: Array, contrast: np.float32) -> tuple[Array, Any]:
    """Return also a cache: the contrast, and which values were not cut."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    found = (x - mean) * contrast + mean
    return found.clip(0, _MOST), (contrast, (found >= 0) & (found <= _MOST))


@dataclass(eq=False)
class RandomCrop(SizedImageLayer, RandomImageLayer):
    """A window of `height` and `width`, at the same place in all images of a batch.

    Outside of training, and for images that are too small, the largest window of that aspect is resized.

    Shapes: [batch, height, width, channels], or one image without the batch axis, becomes one of `height` and
    `width`. Outside of training images are cropped or resized without chance.

    Args:
        height: rows of the output.
        width: columns of the output.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
    """

    height: int
    width: int
    seed: int | None = None

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return a window of all images."""
        down, right = x.shape[1] - self.height, x.shape[2] - self.width
        if min(down, right) < 0:
            return self.unchanged(x)
        top, left = int(rng.integers(down + 1)), int(rng.integers(right + 1))
        return self._cut(x, self._window_at(x, top, left))

    def unchanged(self, x: Array) -> tuple[Array, Any]:
        """Return the largest window of the same aspect, resized."""
        return self._cut(x, self._largest_window(x))

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the whole images."""
        return windowed_back(dy, cache)


MODES = ("horizontal", "vertical", "horizontal_and_vertical")


@dataclass(eq=False)
class RandomFlip(RandomImageLayer):
    """Mirrors every second image on average: left and right, top and bottom, or both, each by itself.

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        mode: ``horizontal``, ``vertical`` or ``horizontal_and_vertical``.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
    """

    mode: str = "horizontal_and_vertical"
    seed: int | None = None

    def __post_init__(self) -> None:
        self._expect_one_of("mode", MODES)

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return mirrored images, and which were."""
        flips = [
            (axis, rng.random(len(x)) < 0.5)
            for axis, name in ((2, "horizontal"), (1, "vertical"))
            if name in self.mode
        ]
        return self.back(flips, x), flips

    def back(self, cache: Any, dy: Array) -> Array:
        """Return arrays mirrored in the same way, which is undone by doing it again."""
        found = dy.copy()
        for axis, chosen in cache:
            found[chosen] = np.flip(found[chosen], axis)
        return found


@dataclass(eq=False)
class RandomRotation(ProjectingLayer):
    """Turns each image about its middle by a fraction of a full turn (positive: against the clock).

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        factor: a number f, for -f to f, or a pair of ends, as fractions of a full turn.
        fill_mode: what lies outside of an image: ``reflect``, ``wrap``, ``constant`` or ``nearest``.
        interpolation: ``bilinear`` or ``nearest``.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
        fill_value: the value outside, for ``constant``.
    """

    factor: Range
    fill_mode: str = "reflect"
    interpolation: str = "bilinear"
    seed: int | None = None
    fill_value: float = 0.0

    def __post_init__(self) -> None:
        self.check_filling()
        lower, upper = self.range_of("factor", self.factor, -inf, inf)
        self._angles = (lower * 2 * pi, upper * 2 * pi)

    def maps(self, count: int, height: int, width: int, rng: np.random.Generator) -> Array:
        """Return turns."""
        angles = drawn(rng, self._angles, count)
        cosine, sine = np.cos(angles), np.sin(angles)
        right, low = np.float32(width - 1), np.float32(height - 1)
        two = np.float32(2)
        x_offset = (right - (cosine * right - sine * low)) / two
        y_offset = (low - (sine * right + cosine * low)) / two
        return np.stack([cosine, -sine, x_offset, sine, cosine, y_offset], axis=1)


@dataclass(eq=False)
class RandomTranslation(ProjectingLayer):
    """Shifts each image down and to the right by fractions of its height and width (negative: up, left).

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        height_factor: a number f, for -f to f, or a pair of ends, as fractions of the height.
        width_factor: a number f, for -f to f, or a pair of ends, as fractions of the width.
        fill_mode: what lies outside of an image: ``reflect``, ``wrap``, ``constant`` or ``nearest``.
        interpolation: ``bilinear`` or ``nearest``.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
        fill_value: the value outside, for ``constant``.
    """

    height_factor: Range
    width_factor: Range
    fill_mode: str = "reflect"
    interpolation: str = "bilinear"
    seed: int | None = None
    fill_value: float = 0.0

    def __post_init__(self) -> None:
        self.check_filling()
        self._height = self.range_of("height_factor", self.height_factor, -1, 1)
        self._width = self.range_of("width_factor", self.width_factor, -1, 1)

    def maps(self, count: int, height: int, width: int, rng: np.random.Generator) -> Array:
        """Return shifts."""
        found = np.zeros((count, 6), np.float32)
        found[:, 0] = found[:, 4] = 1
        found[:, 5] = -drawn(rng, self._height, count) * np.float32(height)
        found[:, 2] = -drawn(rng, self._width, count) * np.float32(width)
        return found


@dataclass(eq=False)
class RandomZoom(ProjectingLayer):
    """Zooms each image out (positive factors) or in, by the same both ways without `width_factor`.

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        height_factor: a number f, for -f to f, or a pair of ends, as fractions of the height.
        width_factor: a number f, for -f to f, or a pair of ends, as fractions of the width; None: as the
            height.
        fill_mode: what lies outside of an image: ``reflect``, ``wrap``, ``constant`` or ``nearest``.
        interpolation: ``bilinear`` or ``nearest``.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
        fill_value: the value outside, for ``constant``.
    """

    height_factor: Range
    width_factor: Range | None = None
    fill_mode: str = "reflect"
    interpolation: str = "bilinear"
    seed: int | None = None
    fill_value: float = 0.0

    def __post_init__(self) -> None:
        self.check_filling()
        low, high = self.range_of("height_factor", self.height_factor, -1, 1)
        self._height = (1 + low, 1 + high)
        if self.width_factor is not None:
            low, high = self.range_of("width_factor", self.width_factor, -1, inf)
            self._width = (1 + low, 1 + high)

    def maps(self, count: int, height: int, width: int, rng: np.random.Generator) -> Array:
        """Return zooms."""
        found = np.zeros((count, 6), np.float32)
        down = drawn(rng, self._height, count)
        across = down if self.width_factor is None else drawn(rng, self._width, count)
        found[:, 0], found[:, 4] = across, down
        found[:, 2] = np.float32((width - 1) / 2) * (1 - across)
        found[:, 5] = np.float32((height - 1) / 2) * (1 - down)
        return found


@dataclass(eq=False)
class Resizing(SizedImageLayer):
    """Images of `height` and `width`; with `crop_to_aspect_ratio` of the largest window of their aspect.

    Shapes: [batch, height, width, channels], or one image without the batch axis, becomes float32 of the new
    `height` and `width`.

    Args:
        height: rows of the output.
        width: columns of the output.
        interpolation: ``bilinear``, ``nearest``, ``bicubic``, ``area``, ``lanczos3``, ``lanczos5``,
            ``gaussian`` or ``mitchellcubic``.
        crop_to_aspect_ratio: whether a window of the new aspect is taken first, so that nothing is distorted.
    """

    height: int
    width: int
    interpolation: str = "bilinear"
    crop_to_aspect_ratio: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_one_of("interpolation", geometry.METHODS)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the resized images."""
        whole = Window(slice(None), slice(None), x.shape)
        window = self._largest_window(x) if self.crop_to_aspect_ratio else whole
        return self._cut(x, window, self.interpolation)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the gradient by the images."""
        return windowed_back(dy, cache, self.interpolation)
