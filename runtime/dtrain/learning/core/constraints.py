"""Limits of weights, kept after every update: Keras's max_norm, min_max_norm, non_neg and unit_norm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dtrain.learning.core.configuration import Configurable, from_data, snake_case
from dtrain.types import Array

_EPSILON = np.float32(1e-7)


class Constraint(Configurable):
    """Base class: what becomes of a weight after an update. One of your own overrides `__call__`."""

    def __init__(self) -> None:
        """Take no arguments; see `Configurable.__new__`."""

    def __call__(self, w: Array) -> Array:
        """Return the weight within its limits, an array of the same shape.

        Args:
            w: the weight.
        """
        raise NotImplementedError


ConstraintLike: TypeAlias = str | Constraint | Mapping[str, Any] | None


@dataclass(frozen=True)
class MinMaxNorm(Constraint):
    """Norms along `axis` from `min_value` to `max_value`.

    Args:
        min_value: the smallest norm.
        max_value: the largest norm.
        rate: which part of the way to the limit an update goes.
        axis: the axis, or axes, along which norms are taken: 0 for dense kernels, (0, 1, 2) for those of
            images.
    """

    min_value: float = 0.0
    max_value: float = 1.0
    rate: float = 1.0
    axis: int | Sequence[int] = 0

    def __call__(self, w: Array) -> Array:
        axes = self.axis if isinstance(self.axis, int) else tuple(self.axis)
        norms: Array = np.sqrt((w * w).sum(axis=axes, keepdims=True))
        limited = np.clip(norms, np.float32(self.min_value), np.float32(self.max_value))
        wanted: Array = np.float32(self.rate) * limited + np.float32(1 - self.rate) * norms
        return w * (wanted / (_EPSILON + norms))


class MaxNorm(MinMaxNorm):
    """Norms along `axis` of at most `max_value`: longer vectors are shortened.

    Args:
        max_value: the largest norm.
        axis: as of `MinMaxNorm`.
    """

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        super().__init__(0.0, max_value, axis=axis)


class UnitNorm(MinMaxNorm):
    """Norms along `axis` of 1.

    Args:
        axis: as of `MinMaxNorm`.
    """

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        super().__init__(1.0, 1.0, axis=axis)


class NonNeg(Constraint):
    """No negative numbers: they become 0."""

    def __call__(self, w: Array) -> Array:
        return w * (w >= 0)


max_norm = MaxNorm
min_max_norm = MinMaxNorm
non_neg = NonNeg
unit_norm = UnitNorm
"""Keras's other names."""

CLASSES: dict[str, type[Constraint]] = {
    each.__name__: each for each in (MaxNorm, MinMaxNorm, NonNeg, UnitNorm)
}
_BY_NAME = CLASSES | {snake_case(name): each for name, each in CLASSES.items()}

__all__ = ["Constraint", "MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm", "get"]


def get(identifier: ConstraintLike) -> Constraint | None:
    """Return the constraint for an object, a name (``max_norm``, ``non_neg``, ...), data, or None.

    Args:
        identifier: a `Constraint`, a name, ``{"class_name", "config"}``, or None.
    """
    return None if identifier is None else from_data(identifier, "constraint", _BY_NAME)
