"""The base of layers that shift, turn or zoom images at random."""

from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.images.image_layer import RandomImageLayer
from dtrain.learning.layers.preprocessing.images.projection import (
    FILL_MODES,
    INTERPOLATIONS,
    projected,
    projected_back,
)
from dtrain.types import Array


class ProjectingLayer(RandomImageLayer):
    """Base of layers that read each image through an affine map of its own."""

    fill_mode: str
    interpolation: str
    fill_value: float

    def check_filling(self) -> None:
        """Raise a `SpecError` for a fill mode or an interpolation that is not known."""
        known: Any
        for name, known in (("fill_mode", tuple(FILL_MODES)), ("interpolation", INTERPOLATIONS)):
            if (found := getattr(self, name)) not in known:
                raise SpecError(f"{self.label}: {name}: expected one of {known}, found {found!r}")

    def maps(self, count: int, height: int, width: int, rng: np.random.Generator) -> Array:
        """Return the numbers of each image's map [count, 6], float32."""
        raise NotImplementedError

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return the images read through maps that are drawn."""
        maps = self.maps(len(x), x.shape[1], x.shape[2], rng)
        return projected(x, maps, self.fill_mode, self.interpolation, self.fill_value), maps

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        return projected_back(dy, cache, self.fill_mode, self.interpolation)


def drawn(rng: np.random.Generator, ends: tuple[float, float], count: int) -> Array:
    """Return numbers between two ends, each as likely, as float32."""
    return rng.uniform(*ends, count).astype(np.float32)
