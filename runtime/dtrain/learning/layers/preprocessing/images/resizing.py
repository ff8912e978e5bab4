"""Resizing: images of another size."""

from dataclasses import dataclass
from typing import Any

from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.images.cropping import (
    Window,
    aspect_window,
    windowed,
    windowed_back,
)
from dtrain.learning.layers.preprocessing.images.image_layer import ImageLayer
from dtrain.learning.layers.preprocessing.images.resampling import METHODS
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class Resizing(ImageLayer):
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
        self.expect_image_size(self.height, self.width)
        if self.interpolation not in METHODS:
            raise SpecError(
                f"{self.label}: interpolation: expected one of {METHODS}, found {self.interpolation!r}"
            )

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the new size."""
        return (self.height, self.width, super().output_shape(input_shape)[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the resized images."""
        window = Window(slice(None), slice(None), x.shape)
        if self.crop_to_aspect_ratio:
            window = aspect_window(x.shape, self.height, self.width)
        return windowed(x, window, self.height, self.width, self.interpolation), window

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the gradient by the images."""
        return windowed_back(dy, cache, self.interpolation)
