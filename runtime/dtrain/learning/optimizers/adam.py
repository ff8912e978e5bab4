"""Adam and its relatives: a mean of gradients over the root of a mean of their squares (Kingma and Ba, 2014)."""

import math
from dataclasses import dataclass

import numpy as np

from dtrain.learning.optimizers.optimizer import Array, Optimizer, Slots


def move_towards(mean: Array, target: Array, fraction: float, scratch: Array) -> None:
    """Move `mean` by this fraction of the way to `target`, in place; `scratch` may be `target`."""
    np.subtract(target, mean, out=scratch)
    np.multiply(scratch, fraction, out=scratch)
    np.add(mean, scratch, out=mean)


@dataclass
class Adam(Optimizer):
    """m and v are moving means of g and g²; w -= rate · m̂ / (√v̂ + epsilon), their bias towards zero taken out.

    Slots: `m`, `v`; with `amsgrad` also `vhat`, the largest v so far, which then stands in v's place.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0, "v": 0.0} | ({"vhat": 0.0} if self.amsgrad else {})

    def _update_block(self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int) -> None:
        m, v, s = slots["m"], slots["v"], scratch[0]
        unbiased_rate = rate * math.sqrt(1 - self.beta_2 ** (step + 1)) / (1 - self.beta_1 ** (step + 1))
        move_towards(m, gradient, 1 - self.beta_1, s)
        move_towards(v, np.multiply(gradient, gradient, out=s), 1 - self.beta_2, s)
        if self.amsgrad:
            v = np.maximum(slots["vhat"], v, out=slots["vhat"])
        np.sqrt(v, out=s)
        np.add(s, self.epsilon, out=s)
        np.divide(m, s, out=s)
        np.multiply(s, unbiased_rate, out=s)
        np.subtract(value, s, out=value)


@dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017)."""

    weight_decay: float | None = 0.004
