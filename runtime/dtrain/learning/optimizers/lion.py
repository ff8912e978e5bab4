"""Lion: the sign of a momentum, so that every element moves by the learning rate (Chen et al., 2023)."""

from dataclasses import dataclass

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots, move_towards
from dtrain.learning.optimizers.schedules import LearningRateSchedule
from dtrain.types import Array


@dataclass
class Lion(Optimizer):
    """w -= rate · sign(beta_1 · m + (1 - beta_1) · g); then m is a moving mean of g by beta_2. Slot: `m`.

    Args:
        learning_rate: the step of every element: a number, or a schedule.
        beta_1: the share of the mean in the direction of a step.
        beta_2: how much of the mean of gradients stays at each step.
    """

    learning_rate: float | LearningRateSchedule = 0.0001
    beta_1: float = 0.9
    beta_2: float = 0.99

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        m = slots["m"]
        s = scratch[0]
        np.subtract(gradient, m, out=s)
        np.multiply(s, 1 - self.beta_1, out=s)
        np.add(m, s, out=s)
        np.sign(s, out=s)
        np.multiply(s, rate, out=s)
        np.subtract(value, s, out=out)
        move_towards(m, gradient, 1 - self.beta_2, s)
