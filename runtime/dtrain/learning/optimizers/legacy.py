"""The optimizers of Keras before 2.11.

They have a `decay` of the learning rate and put epsilon elsewhere, and with sparse gradients they move only
the rows that these list (Adam, and RMSprop without momentum, move all rows here too).
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.optimizers import update_rules
from dtrain.learning.optimizers.optimizer import Optimizer, Slots, root_of_sum, root_plus
from dtrain.types import Array


@dataclass
class Legacy(Optimizer):
    """Base of the legacy optimizers; the learning rate is divided by 1 + `decay` · step.

    Args:
        decay: how fast the learning rate falls: it is divided by 1 + `decay` · step.
    """

    _: KW_ONLY
    decay: float = 0.0

    is_legacy_optimizer: ClassVar[bool] = True
    sparse_differs: ClassVar[bool] = True

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update after the first `step` updates."""
        return super().learning_rate_at(step) / (1 + self.decay * step)

    def _moves_listed_rows_only(self) -> bool:
        return True


@dataclass
class SGD(Legacy, update_rules.SGD):
    """`optimizers.SGD` with `decay`."""


@dataclass
class Adagrad(Legacy, update_rules.Adagrad):
    """`optimizers.Adagrad` with `decay`; epsilon is added to the root."""

    _root = staticmethod(root_plus)


@dataclass
class Adadelta(Legacy, update_rules.Adadelta):
    """`optimizers.Adadelta` with `decay`."""


@dataclass
class RMSprop(Legacy, update_rules.RMSprop):
    """`optimizers.RMSprop` with `decay`; without momentum epsilon is added to the root, not under it."""

    def _root(self, spread: Array, epsilon: float, out: Array) -> Array:
        return (root_of_sum if self.momentum else root_plus)(spread, epsilon, out)

    def _moves_listed_rows_only(self) -> bool:
        return bool(self.momentum)


@dataclass
class Adam(Legacy, update_rules.Adam):
    """`optimizers.Adam` with `decay`."""

    def _moves_listed_rows_only(self) -> bool:
        return False


@dataclass
class Adamax(Legacy, update_rules.Adamax):
    """`optimizers.Adamax` with `decay`."""


@dataclass
class Nadam(Legacy, update_rules.Nadam):
    """`optimizers.Nadam`; `decay` is that of the momentum's schedule, and the learning rate stays.

    Args:
        decay: of the momentum's schedule.
    """

    _: KW_ONLY
    decay: float = 0.004

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update after the first `step` updates."""
        return Optimizer.learning_rate_at(self, step)

    def update_rows(
        self, value: Array, ids: Array, rows: Array, slots: Slots, step: int, *, rate_scale: float = 1.0
    ) -> None:
        """Update as `Optimizer.update_rows`: the slots of all rows, and the values of the listed ones."""
        moved = value.copy()
        super().update_rows(moved, ids, rows, slots, step, rate_scale=rate_scale)
        value[ids] = moved[ids]

    def _moves_listed_rows_only(self) -> bool:
        return False

    def _momentum(self, steps: Array) -> Array:
        return np.asarray(self.beta_1 * (1 - 0.5 * 0.96 ** (self.decay * steps)))


@dataclass
class Ftrl(Legacy, update_rules.Ftrl):
    """`optimizers.Ftrl` with `decay`."""


RULES: dict[str, type[Optimizer]] = {
    rule.__name__: rule for rule in (SGD, Adagrad, Adadelta, RMSprop, Adam, Adamax, Nadam, Ftrl)
}
