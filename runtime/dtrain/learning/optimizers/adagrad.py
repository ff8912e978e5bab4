"""Adagrad: each element has its own rate, which falls with its squared gradients (Duchi et al., 2011)."""

from dataclasses import dataclass

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots
from dtrain.types import Array


@dataclass
class Adagrad(Optimizer):
    """a += g²; w -= rate · g / √(a + epsilon). Slot: `accumulator` (a).

    Args:
        initial_accumulator_value: the sum of squares with which an element begins.
        epsilon: a small number that keeps the divisor off 0.
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the mean of squares stays at each step.
    """

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def _slot_values(self) -> dict[str, float]:
        return {"accumulator": self.initial_accumulator_value}

    def _moves_listed_rows_only(self) -> bool:
        return True

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        accumulator = slots["accumulator"]
        s = scratch[0]
        np.multiply(gradient, gradient, out=s)
        np.add(accumulator, s, out=accumulator)
        np.divide(gradient, self._root(accumulator, s), out=s)
        np.multiply(s, rate, out=s)
        np.subtract(value, s, out=out)

    def _root(self, accumulator: Array, out: Array) -> Array:
        """Return the root that divides the gradient, in `out`."""
        np.add(accumulator, self.epsilon, out=out)
        return np.sqrt(out, out=out)
