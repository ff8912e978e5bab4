"""RandomTranslation: images shifted."""

from dataclasses import dataclass

import numpy as np

from dtrain.learning.layers.preprocessing.images.image_layer import Range
from dtrain.learning.layers.preprocessing.images.projecting_layer import ProjectingLayer, drawn
from dtrain.types import Array


@dataclass(eq=False)
class RandomTranslation(ProjectingLayer):
    """Shifts each image down and to the right by fractions of its height and width (negative: up, left)."""

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
