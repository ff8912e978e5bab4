"""The optimizers' update rules: SGD, Adam and its relatives, RMSprop, Adadelta, Adagrad, Lion and Ftrl.

- Adam has a mean of gradients over the root of a mean of squares (Kingma and Ba, 2014).
- RMSprop has gradients over the root of a moving mean of their squares (Tieleman and Hinton, 2012).
- Adadelta: the rate is the ratio of the sizes of past steps and past gradients (Zeiler, 2012).
- Adagrad: each element has its own rate, which falls with its squared gradients (Duchi et al., 2011).
- Lion has the sign of a momentum, so that every element moves by the learning rate (Chen et al., 2023).
- Ftrl: follow the regularized leader, with L1 and L2 regularization (McMahan et al., 2013).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.learning.optimizers.optimizer import Optimizer, Slots, move_towards, root_of_sum, root_plus
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


@dataclass
class OuterSGD(SGD):
    """The rule by which servers update variables from rounds of local steps; see docs/guide/local_steps.md.

    A gradient is the difference of a replica's variables over its round: before it less after it. With a
    `delay` of N, as pushes come one by one, each moves the variables by its N-th part of the rate, and every
    N-th besides moves them by the momentum of their mean (Liu et al., 2024). Slots: `m`, only with momentum;
    `sum` with a delay.

    Args:
        delay: N, the pushes from one use of the momentum to the next; 0: every version is one.
        values: whether replicas push their variables themselves, of which the mean is the next version.
        inner: the optimizer of the replicas, as `serialize` makes it.
    """

    not_numbers: ClassVar[frozenset[str]] = frozenset({"name", "inner"})

    delay: int = 0
    values: bool = False  # type: ignore[misc]
    inner: dict[str, Any] | None = None  # type: ignore[misc]

    def _slot_values(self) -> dict[str, float]:
        return super()._slot_values() | ({"sum": 0.0} if self.delay and self.momentum else {})

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        if not self.delay:
            super()._update_block(value, gradient, slots, scratch, rate, step, out)
            return
        move = np.multiply(gradient, -rate / self.delay, out=scratch[0])
        if self.momentum:
            m, total = slots["m"], slots["sum"]
            np.add(total, move, out=total)
            if (step + 1) % self.delay == 0:
                np.multiply(m, self.momentum, out=m)
                np.add(m, total, out=m)
                total.fill(0)
                np.add(move, np.multiply(m, self.momentum, out=scratch[1]), out=move)
        np.add(value, move, out=out)


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
        np.divide(m, root_plus(v, self.epsilon, out=s), out=s)
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
        # the product of the momenta so far, of those that can change 1 - product
        enough = math.ceil(math.log(1e-12) / math.log(self.beta_1)) if 0 < self.beta_1 < 1 else step + 1
        product = float(np.prod(self._momentum(np.arange(1, min(step + 1, enough) + 1))))
        move_towards(m, gradient, 1 - self.beta_1, s)
        move_towards(v, np.multiply(gradient, gradient, out=s), 1 - self.beta_2, s)
        np.divide(v, 1 - self.beta_2 ** (step + 1), out=root)
        root_plus(root, self.epsilon, out=root)
        np.multiply(m, rate * following / (1 - product * following), out=s)
        np.divide(s, root, out=s)
        np.subtract(value, s, out=out)
        np.multiply(gradient, rate * (1 - now) / (1 - product), out=s)
        np.divide(s, root, out=s)
        np.subtract(out, s, out=out)

    def _momentum(self, steps: Array) -> Array:
        return np.asarray(self.beta_1 * (1 - 0.5 * 0.96**steps))


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
        np.divide(gradient, self._root(spread, self.epsilon, scratch[1]), out=s)
        np.multiply(s, rate, out=s)
        if self.momentum:
            momentum = slots["momentum"]
            np.multiply(momentum, self.momentum, out=momentum)
            s = np.add(momentum, s, out=momentum)
        np.subtract(value, s, out=out)

    def _root(self, spread: Array, epsilon: float, out: Array) -> Array:
        return root_of_sum(spread, epsilon, out)


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
        np.divide(gradient, self._root(accumulator, self.epsilon, s), out=s)
        np.multiply(s, rate, out=s)
        np.subtract(value, s, out=out)

    _root = staticmethod(root_of_sum)


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
