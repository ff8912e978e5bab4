"""CenterCrop: the middle of images."""

from dataclasses import dataclass
from typing import Any

from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.images.cropping import (
    Window,
    aspect_window,
    windowed,
    windowed_back,
)
from dtrain.learning.layers.preprocessing.images.image_layer import ImageLayer
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class CenterCrop(ImageLayer):
    """The middle, `height` by `width`; of smaller images the largest window of that aspect, resized.

    Shapes: [batch, height, width, channels], or one image without the batch axis, becomes one of `height` and
    `width`.

    Args:
        height: rows of the output.
        width: columns of the output.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        self.expect_image_size(self.height, self.width)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the window's size."""
        return (self.height, self.width, super().output_shape(input_shape)[-1])

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the middle."""
        down, right = x.shape[1] - self.height, x.shape[2] - self.width
        if min(down, right) < 0:
            window = aspect_window(x.shape, self.height, self.width)
        else:
            top, left = down // 2, right // 2
            window = Window(slice(top, top + self.height), slice(left, left + self.width), x.shape)
        return windowed(x, window, self.height, self.width), window

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the gradient by the whole images."""
        return windowed_back(dy, cache)
