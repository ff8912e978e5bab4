"""RandomCrop: a window of the images, at a place that is drawn."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.layers.preprocessing.images.cropping import (
    Window,
    aspect_window,
    windowed,
    windowed_back,
)
from dtrain.learning.layers.preprocessing.images.image_layer import RandomImageLayer
from dtrain.types import Array, Shape


@dataclass(eq=False)
class RandomCrop(RandomImageLayer):
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

    def __post_init__(self) -> None:
        self.expect_image_size(self.height, self.width)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the window's size."""
        return (self.height, self.width, super().output_shape(input_shape)[-1])

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return a window of all images."""
        down, right = x.shape[1] - self.height, x.shape[2] - self.width
        if min(down, right) < 0:
            return self.unchanged(x)
        top, left = int(rng.integers(down + 1)), int(rng.integers(right + 1))
        window = Window(slice(top, top + self.height), slice(left, left + self.width), x.shape)
        return windowed(x, window, self.height, self.width), window

    def unchanged(self, x: Array) -> tuple[Array, Any]:
        """Return the largest window of the same aspect, resized."""
        window = aspect_window(x.shape, self.height, self.width)
        return windowed(x, window, self.height, self.width), window

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the whole images."""
        return windowed_back(dy, cache)
