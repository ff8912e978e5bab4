"""Learning rates that change with the step: `schedule(step)`, as tf.keras.optimizers.schedules.

A schedule is plain data: its config round trips through JSON.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.errors import SpecError
from dtrain.learning.core.configuration import Configurable


@dataclass
class LearningRateSchedule(Configurable):
    """A learning rate as a function of the 0-based step. `name` is Keras's and has no effect.

    One of your own has ``__call__(self, step)``, with functions of dt or Python's; servers are given its
    rates as a table.
    """

    def __call__(self, step: int) -> float:
        raise NotImplementedError(
            f"{type(self).__name__}: expected a method __call__(self, step), found none"
        )


@dataclass
class ExponentialDecay(LearningRateSchedule):
    """initial · decay_rate^(step / decay_steps); with `staircase` the exponent is a whole number.

    Args:
        initial_learning_rate: the rate at step 0.
        decay_steps: steps over which it decays.
        decay_rate: by how much the rate falls in `decay_steps`.
        staircase: whether it falls all at once after each `decay_steps`.
        name: without effect.
        alpha: the last rate, as a fraction of the first.
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False
    name: str | None = None

    def __call__(self, step: int) -> float:
        exponent = step / self.decay_steps
        return self.initial_learning_rate * self.decay_rate ** (
            math.floor(exponent) if self.staircase else exponent
        )


@dataclass
class PiecewiseConstantDecay(LearningRateSchedule):
    """values[0] up to and including step boundaries[0], then values[1], and so on.

    Args:
        boundaries: steps, ascending.
        values: rates: one more than boundaries.
        name: without effect.
    """

    boundaries: Sequence[float]
    values: Sequence[float]
    name: str | None = None

    def __post_init__(self) -> None:
        if len(self.boundaries) != len(self.values) - 1:
            raise SpecError(
                f"PiecewiseConstantDecay: expected one more value than boundaries, found {len(self.values)} "
                "values and "
                f"{len(self.boundaries)} boundaries."
            )
        if any(later <= earlier for earlier, later in pairwise(self.boundaries)):
            raise SpecError(
                f"PiecewiseConstantDecay: expected ascending boundaries, found {list(self.boundaries)}."
            )

    def __call__(self, step: int) -> float:
        return self.values[bisect_left(self.boundaries, step)]


@dataclass
class PolynomialDecay(LearningRateSchedule):
    """From the initial to the end rate over `decay_steps`, by (1 - fraction)^power; repeatedly if `cycle`.

    Args:
        initial_learning_rate: the rate at step 0.
        decay_steps: steps over which it decays.
        end_learning_rate: the rate at the end.
        power: 1: a straight line.
        cycle: whether it begins anew, over a longer time, when it has ended.
        name: without effect.
        decay_rate: by how much the rate falls in `decay_steps`.
        staircase: whether it falls all at once after each `decay_steps`.
        alpha: the last rate, as a fraction of the first.
    """

    initial_learning_rate: float
    decay_steps: float
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    name: str | None = None

    def __call__(self, step: int) -> float:
        decay_steps = self.decay_steps
        if self.cycle:
            decay_steps *= max(1, math.ceil(step / decay_steps))
        fraction = min(step, decay_steps) / decay_steps
        return (self.initial_learning_rate - self.end_learning_rate) * math.pow(
            1 - fraction, self.power
        ) + self.end_learning_rate


@dataclass
class InverseTimeDecay(LearningRateSchedule):
    """initial / (1 + decay_rate · step / decay_steps); with `staircase` the quotient is a whole number.

    Args:
        initial_learning_rate: the rate at step 0.
        decay_steps: steps over which it decays.
        decay_rate: by how much the rate falls in `decay_steps`.
        staircase: whether it falls all at once after each `decay_steps`.
        name: without effect.
        alpha: the last rate, as a fraction of the first.
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False
    name: str | None = None

    def __call__(self, step: int) -> float:
        quotient = step / self.decay_steps
        return self.initial_learning_rate / (
            1 + self.decay_rate * (math.floor(quotient) if self.staircase else quotient)
        )


@dataclass
class CosineDecay(LearningRateSchedule):
    """Linear to `warmup_target` over `warmup_steps`, then half a cosine down to alpha times the peak.

    Args:
        initial_learning_rate: the rate at step 0.
        decay_steps: steps over which it decays.
        alpha: the last rate, as a fraction of the first.
        name: without effect.
        warmup_target: the rate at the end of the warm-up; None: there is none.
        warmup_steps: steps of the warm-up.
        decay_rate: by how much the rate falls in `decay_steps`.
        staircase: whether it falls all at once after each `decay_steps`.
    """

    initial_learning_rate: float
    decay_steps: float
    alpha: float = 0.0
    name: str | None = None
    warmup_target: float | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _require_positive(self, "decay_steps")

    def __call__(self, step: int) -> float:
        if self.warmup_target is None:
            return self.initial_learning_rate * self._factor(step)
        if step < self.warmup_steps:
            return (
                self.initial_learning_rate
                + (self.warmup_target - self.initial_learning_rate) * step / self.warmup_steps
            )
        return self.warmup_target * self._factor(step - self.warmup_steps)

    def _factor(self, step: int) -> float:
        fraction = min(step, self.decay_steps) / self.decay_steps
        return (1 - self.alpha) * 0.5 * (1 + math.cos(math.pi * fraction)) + self.alpha


@dataclass
class CosineDecayRestarts(LearningRateSchedule):
    """Half cosines in a row, each `t_mul` times as long and `m_mul` times as high as the one before (SGDR).

    With `t_mul` below 1 all periods together end after `first_decay_steps / (1 - t_mul)` steps. A later step
    raises SpecError; TensorFlow goes on with a rate of NaN.

    Args:
        initial_learning_rate: the rate at step 0.
        first_decay_steps: steps of the first period.
        t_mul: how many times as long the next period is.
        m_mul: how many times as high the next period begins.
        alpha: the last rate, as a fraction of the first.
        name: without effect.
        decay_steps: steps over which it decays.
        decay_rate: by how much the rate falls in `decay_steps`.
        staircase: whether it falls all at once after each `decay_steps`.
    """

    initial_learning_rate: float
    first_decay_steps: float
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0
    name: str | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "first_decay_steps")

    def __call__(self, step: int) -> float:
        periods = step / self.first_decay_steps
        if self.t_mul == 1.0:
            restarts = math.floor(periods)
            fraction = periods - restarts
        else:
            left = 1 - periods * (1 - self.t_mul)
            if left <= 0:
                end = self.first_decay_steps / (1 - self.t_mul)
                found = f"with t_mul {self.t_mul} the last period ends at step {end:.6g}, found step {step}"
                raise SpecError(
                    f"CosineDecayRestarts: {found}. Use a longer first_decay_steps, or a t_mul of 1 or more."
                )
            restarts = math.floor(math.log(left) / math.log(self.t_mul))
            start = (1 - self.t_mul**restarts) / (1 - self.t_mul)
            fraction = (periods - start) / self.t_mul**restarts
        cosine = 0.5 * self.m_mul**restarts * (1 + math.cos(math.pi * fraction))
        return self.initial_learning_rate * ((1 - self.alpha) * cosine + self.alpha)


STEPS_MAX = 1_000_000
"""The longest table of `known`: some megabytes, which travel once a fit."""


def known(schedule: LearningRateSchedule, steps: int) -> LearningRateSchedule:
    """Return a schedule of dtrain's with the rates of the first `steps` steps; the last one stays.

    Servers and files are given it in the place of a schedule of a program's own, of which they know nothing.
    """
    if type(schedule) in SCHEDULES.values():
        return schedule
    if steps > STEPS_MAX:
        raise SpecError(
            f"{type(schedule).__name__}: {steps} steps are too many for a schedule of your own; take one of "
            f"dt.optimizers.schedules, or fit at most {STEPS_MAX} steps at a time"
        )
    rates = [float(schedule(step)) for step in range(max(1, steps))]
    return PiecewiseConstantDecay([*range(len(rates) - 1)], rates)


SCHEDULES: dict[str, type[LearningRateSchedule]] = {
    schedule.__name__: schedule
    for schedule in (
        ExponentialDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
        InverseTimeDecay,
        CosineDecay,
        CosineDecayRestarts,
    )
}

__all__ = ["LearningRateSchedule", *SCHEDULES]


def _require_positive(schedule: LearningRateSchedule, field: str) -> None:
    if not getattr(schedule, field) > 0:
        raise SpecError(f"{type(schedule).__name__}: expected {field} > 0, found {getattr(schedule, field)}.")


if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.optimizers.schedules", __all__)
