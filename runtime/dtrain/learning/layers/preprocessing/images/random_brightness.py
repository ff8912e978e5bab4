"""RandomBrightness: images made brighter or darker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.images.image_layer import RandomImageLayer, Range
from dtrain.types import Array


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
