"""RMSprop: gradients over the root of a moving mean of their squares (Tieleman and Hinton, 2012)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots, move_towards
from dtrain.types import Array


@dataclass
class RMSprop(Optimizer):
    """v is a moving mean of g²; w -= rate · g / √(v + epsilon).

    With `momentum` w moves by a sum of such steps that decays by it. Slots: `velocity` (v); with `momentum`
    also `momentum`; with `centered`, which takes the gradient's variance for v, `average_gradient`.

    Args:
        rho: how much of the mean of squares stays at each step.
        momentum: how much of the last move is kept; 0: none.
        epsilon: a small number that keeps the divisor off 0.
        centered: whether the variance of gradients takes the place of their mean of squares.
        ema_overwrite_frequency: as for every optimizer.
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the mean of squares stays at each step.
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    ema_overwrite_frequency: int | None = 100

    scratch_arrays: ClassVar[int] = 2

    def _slot_values(self) -> dict[str, float]:
        optional = {"average_gradient": self.centered, "momentum": bool(self.momentum)}
        return {"velocity": 0.0} | {name: 0.0 for name, kept in optional.items() if kept}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        velocity = slots["velocity"]
        s = scratch[0]
        move_towards(velocity, np.multiply(gradient, gradient, out=s), 1 - self.rho, s)
        spread = velocity
        if self.centered:
            mean = slots["average_gradient"]
            move_towards(mean, gradient, 1 - self.rho, s)
            spread = np.subtract(velocity, np.multiply(mean, mean, out=s), out=s)
        np.divide(gradient, self._root(spread, scratch[1]), out=s)
        np.multiply(s, rate, out=s)
        if self.momentum:
            momentum = slots["momentum"]
            np.multiply(momentum, self.momentum, out=momentum)
            s = np.add(momentum, s, out=momentum)
        np.subtract(value, s, out=out)

    def _root(self, spread: Array, out: Array) -> Array:
        """Return the root that divides the gradient, in `out`."""
        np.add(spread, self.epsilon, out=out)
        return np.sqrt(out, out=out)
