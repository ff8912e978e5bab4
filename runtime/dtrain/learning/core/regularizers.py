"""Penalties on weights, added to the loss: Keras's L1, L2 and L1L2."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import Configurable, from_data, unknown_name
from dtrain.types import Array


class Regularizer(Configurable):
    """Base class: the penalty for a weight, and its gradient."""

    def __init__(self) -> None:
        """Take no arguments; see `Configurable.__new__`."""

    def __call__(self, weight: Array) -> float:
        """Return the penalty, in the loss's unit."""
        raise NotImplementedError

    def add_gradient(self, weight: Array, gradient: Array, scale: float = 1.0) -> None:
        """Add `scale` times the penalty's gradient to `gradient`, in place."""
        raise NotImplementedError


RegularizerLike: TypeAlias = str | Regularizer | Mapping[str, Any] | None


@dataclass(frozen=True)
class L1L2(Regularizer):
    """``l1 * sum|w| + l2 * sum w²`` (no half before l2, as in Keras).

    Args:
        l1: the factor of the sum of absolute values.
        l2: the factor of the sum of squares.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __call__(self, weight: Array) -> float:
        penalty = self.l1 * float(np.abs(weight).sum()) if self.l1 else 0.0
        return penalty + (self.l2 * float(np.vdot(weight, weight)) if self.l2 else 0.0)

    def add_gradient(self, weight: Array, gradient: Array, scale: float = 1.0) -> None:
        """Add l1 * sign(w) + 2 * l2 * w."""
        if self.l1:
            gradient += np.float32(self.l1 * scale) * np.sign(weight)
        if self.l2:
            gradient += np.float32(2 * self.l2 * scale) * weight


class L1(L1L2):
    """``l1 * sum|w|``.

    Args:
        l1: the factor.
    """

    def __init__(self, l1: float = 0.01) -> None:
        super().__init__(l1=l1)


class L2(L1L2):
    """``l2 * sum w²``.

    Args:
        l2: the factor.
    """

    def __init__(self, l2: float = 0.01) -> None:
        super().__init__(l2=l2)


l1 = L1
l2 = L2
l1_l2 = L1L2
"""Keras's other names."""

CLASSES: dict[str, type[Regularizer]] = {"L1": L1, "L2": L2, "L1L2": L1L2}
_BY_NAME: dict[str, Regularizer] = {"l1": L1(), "l2": L2(), "l1_l2": L1L2(0.01, 0.01), "L1": L1(), "L2": L2()}
_BY_NAME["L1L2"] = _BY_NAME["l1_l2"]

__all__ = ["Regularizer", "get", *CLASSES]


def get(identifier: RegularizerLike) -> Regularizer | None:
    """Return the regularizer for an object, a name (``l1``, ``l2``, ``l1_l2``), data, or None.

    Args:
        identifier: a `Regularizer`, a name, ``{"class_name", "config"}``, or None.
    """
    if identifier is None or isinstance(identifier, Regularizer):
        return identifier
    if isinstance(identifier, str):
        if identifier not in _BY_NAME:
            raise SpecError(unknown_name(identifier, "regularizer", _BY_NAME, _BY_NAME))
        return _BY_NAME[identifier]
    return from_data(identifier, "regularizer", CLASSES)
