"""Sums over the replicas that compute the parts of one step at the same time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dtrain.types import Array


@dataclass(frozen=True)
class StepSums:
    """A layer's way to the other replicas of a step; each of them asks for the same sums in the same order.

    Attributes:
        total: returns the sum of what all replicas give, added up in their order; they give arrays of the
            same shape and dtype.
        weight: of this part's gradients in those of the step, compared with the other parts'.
    """

    total: Callable[[Array], Array]
    weight: float = 1.0

    def of(self, values: Array) -> Array:
        """Return the sum of values."""
        return self.total(values)

    def of_gradients(self, gradients: Array) -> Array:
        """Return the sum of gradients of every replica's own loss, as the step weighs them, by the weight of
        this replica, whose gradients are multiplied by it later.
        """
        if self.weight == 1.0:
            return self.total(gradients)
        weight = np.float32(self.weight)
        return self.total(gradients * weight) / weight
