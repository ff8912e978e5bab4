"""Ftrl: follow the regularized leader, with L1 and L2 regularization (McMahan et al., 2013)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots
from dtrain.types import Array


@dataclass
class Ftrl(Optimizer):
    """a' = a + g²; z += g - (a'^p - a^p) / rate · w; w = (z limited to ±l1 - z) / (a'^p / rate + 2 · l2).

    p is minus `learning_rate_power`. Slots: `accumulator` (a), `linear` (z).

    Args:
        learning_rate_power: how the rate falls with the sum of squares; at most 0.
        initial_accumulator_value: the sum of squares with which an element begins.
        l1_regularization_strength: of L1: small elements become 0.
        l2_regularization_strength: of L2.
        l2_shrinkage_regularization_strength: of an L2 penalty that counts with the gradient alone.
        beta: is added to L2, divided by twice the rate.
    """

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    scratch_arrays: ClassVar[int] = 2

    def _slot_values(self) -> dict[str, float]:
        return {"accumulator": self.initial_accumulator_value, "linear": 0.0}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        accumulator = slots["accumulator"]
        linear = slots["linear"]
        s = scratch[0]
        power = scratch[1]
        l1 = self.l1_regularization_strength
        l2 = self.l2_regularization_strength + self.beta / (2 * rate)
        shrinkage = self.l2_shrinkage_regularization_strength
        np.add(linear, gradient, out=linear)
        if shrinkage:
            np.add(linear, np.multiply(value, 2 * shrinkage, out=s), out=linear)
        self._power(accumulator, out=power)
        np.add(accumulator, np.multiply(gradient, gradient, out=s), out=accumulator)
        np.subtract(power, self._power(accumulator, out=s), out=power)
        np.multiply(power, value, out=power)
        np.divide(power, rate, out=power)
        np.add(linear, power, out=linear)
        np.divide(s, rate, out=s)
        np.add(s, 2 * l2, out=s)
        np.clip(linear, -l1, l1, out=out)
        np.subtract(out, linear, out=out)
        np.divide(out, s, out=out)

    def _power(self, accumulator: Array, out: Array) -> Array:
        if self.learning_rate_power == -0.5:
            return np.sqrt(accumulator, out=out)
        return np.power(accumulator, -self.learning_rate_power, out=out)
