"""Adadelta: the rate is the ratio of the sizes of past steps and past gradients (Zeiler, 2012)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots, move_towards
from dtrain.types import Array


@dataclass
class Adadelta(Optimizer):
    """a is a moving mean of g², d of step²; step = g · √(d + epsilon) / √(a + epsilon); w -= rate · step.

    Slots: `accumulated_grad` (a), `accumulated_delta_var` (d).

    Args:
        rho: how much of the moving means stays at each step.
        epsilon: a small number that keeps the divisor off 0.
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the mean of squares stays at each step.
    """

    rho: float = 0.95
    epsilon: float = 1e-7

    scratch_arrays: ClassVar[int] = 2

    def _slot_values(self) -> dict[str, float]:
        return {"accumulated_grad": 0.0, "accumulated_delta_var": 0.0}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        gradients = slots["accumulated_grad"]
        moves = slots["accumulated_delta_var"]
        s = scratch[0]
        move = scratch[1]
        move_towards(gradients, np.multiply(gradient, gradient, out=s), 1 - self.rho, s)
        np.add(moves, self.epsilon, out=move)
        np.add(gradients, self.epsilon, out=s)
        np.divide(move, s, out=move)
        np.sqrt(move, out=move)
        np.multiply(move, gradient, out=move)
        move_towards(moves, np.multiply(move, move, out=s), 1 - self.rho, s)
        np.multiply(move, rate, out=move)
        np.subtract(value, move, out=out)
