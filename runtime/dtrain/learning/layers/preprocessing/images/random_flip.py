"""RandomFlip: images mirrored."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.images.image_layer import RandomImageLayer
from dtrain.types import Array

MODES = ("horizontal", "vertical", "horizontal_and_vertical")


@dataclass(eq=False)
class RandomFlip(RandomImageLayer):
    """Mirrors every second image on average: left and right, top and bottom, or both, each by itself.

    Shapes: [batch, height, width, channels], or one image without the batch axis; the shape stays. Outside of
    training images are handed on.

    Args:
        mode: ``horizontal``, ``vertical`` or ``horizontal_and_vertical``.
        seed: a number from which this layer draws, in place of the run's or the map's seed; None: those.
    """

    mode: str = "horizontal_and_vertical"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SpecError(f"{self.label}: mode: expected one of {MODES}, found {self.mode!r}")

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return mirrored images, and which were."""
        flips = [
            (axis, rng.random(len(x)) < 0.5)
            for axis, name in ((2, "horizontal"), (1, "vertical"))
            if name in self.mode
        ]
        return self.back(flips, x), flips

    def back(self, cache: Any, dy: Array) -> Array:
        """Return arrays mirrored in the same way, which is undone by doing it again."""
        found = dy.copy()
        for axis, chosen in cache:
            found[chosen] = np.flip(found[chosen], axis)
        return found
