"""Windows of images, resized where they have another size than is wanted."""

from typing import NamedTuple

import numpy as np

from dtrain.learning.layers.preprocessing.images.resampling import (
    resized,
    resized_back,
    window_of_aspect,
)
from dtrain.types import Array


class Window(NamedTuple):
    """Rows and columns of images of a shape."""

    rows: slice
    columns: slice
    shape: tuple[int, ...]


def aspect_window(shape: tuple[int, ...], height: int, width: int) -> Window:
    """Return the largest centred window of images of `shape` that has the aspect of the new size."""
    return Window(*window_of_aspect(shape[1], shape[2], height, width), shape)


def windowed(x: Array, window: Window, height: int, width: int, method: str = "bilinear") -> Array:
    """Return the window of images, resized to `height` and `width`."""
    return np.ascontiguousarray(resized(x[:, window.rows, window.columns], height, width, method))


def windowed_back(dy: Array, window: Window, method: str = "bilinear") -> Array:
    """Return the gradient by the whole images."""
    found = np.zeros(window.shape, np.float32)
    inner = found[:, window.rows, window.columns]
    inner[...] = resized_back(dy, inner.shape[1], inner.shape[2], method)
    return found
