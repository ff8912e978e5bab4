"""Adam and its relatives: a mean of gradients over the root of a mean of squares (Kingma and Ba, 2014)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots, move_towards
from dtrain.types import Array


@dataclass
class Adam(Optimizer):
    """m and v are moving means of g and g², made unbiased (m̂, v̂); w -= rate · m̂ / (√v̂ + epsilon).

    Slots: `m`, `v`; with `amsgrad` also `vhat`, the largest v so far, which then stands in v's place.

    Args:
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the mean of squares stays at each step.
        epsilon: a small number that keeps the divisor off 0.
        amsgrad: whether the largest mean of squares so far takes the place of the newest.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0, "v": 0.0} | ({"vhat": 0.0} if self.amsgrad else {})

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        m = slots["m"]
        v = slots["v"]
        s = scratch[0]
        unbiased_rate = rate * math.sqrt(1 - self.beta_2 ** (step + 1)) / (1 - self.beta_1 ** (step + 1))
        move_towards(m, gradient, 1 - self.beta_1, s)
        move_towards(v, np.multiply(gradient, gradient, out=s), 1 - self.beta_2, s)
        if self.amsgrad:
            v = np.maximum(slots["vhat"], v, out=slots["vhat"])
        np.sqrt(v, out=s)
        np.add(s, self.epsilon, out=s)
        np.divide(m, s, out=s)
        np.multiply(s, unbiased_rate, out=s)
        np.subtract(value, s, out=out)


@dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017).

    Args:
        weight_decay: every variable first loses this fraction, times the learning rate; None: nothing.
    """

    weight_decay: float | None = 0.004


@dataclass
class Adamax(Optimizer):
    """w -= rate · m̂ / (u + epsilon): m a moving mean of g, u a decaying maximum of |g|. Slots: `m`, `u`.

    Args:
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the maximum stays at each step.
        epsilon: a small number that keeps the divisor off 0.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0, "u": 0.0}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        m = slots["m"]
        u = slots["u"]
        s = scratch[0]
        move_towards(m, gradient, 1 - self.beta_1, s)
        np.multiply(u, self.beta_2, out=u)
        np.maximum(u, np.abs(gradient, out=s), out=u)
        np.add(u, self.epsilon, out=s)
        np.divide(m, s, out=s)
        np.multiply(s, rate / (1 - self.beta_1 ** (step + 1)), out=s)
        np.subtract(value, s, out=out)


@dataclass
class Nadam(Optimizer):
    """Adam with Nesterov's momentum, whose size rises from half of beta_1 (Dozat, 2016). Slots: `m`, `v`.

    Differs from Keras: its `fit` multiplies the product of momenta once a variable, from the second step on.
    Here it is once a step, as in the paper and in Keras's eager updates.

    Args:
        beta_1: how much of the mean of gradients stays at each step.
        beta_2: how much of the mean of squares stays at each step.
        epsilon: a small number that keeps the divisor off 0.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    scratch_arrays: ClassVar[int] = 2

    def _slot_values(self) -> dict[str, float]:
        return {"m": 0.0, "v": 0.0}

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        m = slots["m"]
        v = slots["v"]
        s = scratch[0]
        root = scratch[1]
        now, following = self._momentum(np.array([step + 1, step + 2])).tolist()
        product = self._momentum_product(step + 1)
        move_towards(m, gradient, 1 - self.beta_1, s)
        move_towards(v, np.multiply(gradient, gradient, out=s), 1 - self.beta_2, s)
        np.divide(v, 1 - self.beta_2 ** (step + 1), out=root)
        np.sqrt(root, out=root)
        np.add(root, self.epsilon, out=root)
        np.multiply(m, rate * following / (1 - product * following), out=s)
        np.divide(s, root, out=s)
        np.subtract(value, s, out=out)
        np.multiply(gradient, rate * (1 - now) / (1 - product), out=s)
        np.divide(s, root, out=s)
        np.subtract(out, s, out=out)

    def _momentum(self, steps: Array) -> Array:
        """Return the momentum of each of these steps, counted from 1."""
        return np.asarray(self.beta_1 * (1 - 0.5 * 0.96**steps))

    def _momentum_product(self, step: int) -> float:
        """Return the product of the momenta of steps 1 to `step`, of those that can change 1 - product."""
        enough = math.ceil(math.log(1e-12) / math.log(self.beta_1)) if 0 < self.beta_1 < 1 else step
        return float(np.prod(self._momentum(np.arange(1, min(step, enough) + 1))))
