"""RandomContrast: images of more or less contrast."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.images.image_layer import RandomImageLayer, Range
from dtrain.types import Array

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
    """Return images of another contrast, and a cache: the contrast, and which values were not cut."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    found = (x - mean) * contrast + mean
    return found.clip(0, _MOST), (contrast, (found >= 0) & (found <= _MOST))
