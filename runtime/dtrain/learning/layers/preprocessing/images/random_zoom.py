"""RandomZoom: images made smaller or larger within their frame."""

from dataclasses import dataclass
from math import inf

import numpy as np

from dtrain.learning.layers.preprocessing.images.image_layer import Range
from dtrain.learning.layers.preprocessing.images.projecting_layer import ProjectingLayer, drawn
from dtrain.types import Array


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
