"""Stochastic gradient descent, with momentum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots
from dtrain.learning.optimizers.schedules import LearningRateSchedule
from dtrain.types import Array


@dataclass
class SGD(Optimizer):
    """w -= rate · g. With momentum: m = momentum · m - rate · g; w += m.

    With `nesterov` w += momentum · m - rate · g. Slots: `m`, only with momentum.

    Args:
        learning_rate: a number, or a schedule; may be changed between updates.
        momentum: how much of the last move is kept; 0: none.
        nesterov: whether the step looks ahead by the momentum.
    """

    learning_rate: float | LearningRateSchedule = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    scratch_arrays: ClassVar[int] = 2

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0} if self.momentum else {}

    def _moves_listed_rows_only(self) -> bool:
        return not self.momentum

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        move = np.multiply(gradient, -rate, out=scratch[0])
        if self.momentum:
            m = slots["m"]
            np.multiply(m, self.momentum, out=m)
            np.add(m, move, out=m)
            if self.nesterov:
                np.add(move, np.multiply(m, self.momentum, out=scratch[1]), out=move)
            else:
                move = m
        np.add(value, move, out=out)
