"""Rescaling: values times a factor, plus an offset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.preparing_layer import PreparingLayer
from dtrain.types import Array, Arrays


@dataclass(eq=False)
class Rescaling(PreparingLayer):
    """A layer that computes ``x * scale + offset``. The shape stays.

    Args:
        scale: a number, or one for each place of the last axis.
        offset: a number, or one for each place of the last axis.
    """

    scale: float | Sequence[float]
    offset: float | Sequence[float] = 0.0

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the rescaled values."""
        return x * np.asarray(self.scale, np.float32) + np.asarray(self.offset, np.float32), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy * scale."""
        return dy * np.asarray(self.scale, np.float32)
