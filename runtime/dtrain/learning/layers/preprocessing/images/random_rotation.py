"""RandomRotation: images turned."""

from dataclasses import dataclass
from math import inf, pi

import numpy as np

from dtrain.learning.layers.preprocessing.images.image_layer import Range
from dtrain.learning.layers.preprocessing.images.projecting_layer import ProjectingLayer, drawn
from dtrain.types import Array


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
