"""RandomTranslation: images shifted."""

from dataclasses import dataclass

import numpy as np

from dtrain.learning.layers.preprocessing.images.image_layer import Range
from dtrain.learning.layers.preprocessing.images.projecting_layer import ProjectingLayer, drawn
from dtrain.types import Array


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
