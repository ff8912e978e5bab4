"""Losses as metrics: the mean over all examples since the last reset."""

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from dtrain.learning import losses
from dtrain.learning.metrics.metric import MeanOfExamples, divide_no_nan
from dtrain.types import Array


class LossMean(MeanOfExamples):
    """The mean of a loss, of the class `measured`, which has the same arguments."""

    measured: ClassVar[type[losses.Loss]]

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return np.asarray(self._loss()(y_true, y_pred))

    def _loss(self) -> losses.Loss:
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}
        return self.measured(reduction="none", **given)


class MeanSquaredError(LossMean):
    """The mean of (p - t)²."""

    measured = losses.MeanSquaredError


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of (p - t)²."""

    def result(self) -> float:
        """Return the root of the mean."""
        return float(np.sqrt(divide_no_nan(self.state["total"], self.state["count"])))


class MeanAbsoluteError(LossMean):
    """The mean of |p - t|."""

    measured = losses.MeanAbsoluteError


class MeanAbsolutePercentageError(LossMean):
    """The mean of 100 · |(p - t) / t|."""

    measured = losses.MeanAbsolutePercentageError


class MeanSquaredLogarithmicError(LossMean):
    """The mean of (log(1 + p) - log(1 + t))²."""

    measured = losses.MeanSquaredLogarithmicError


class LogCoshError(LossMean):
    """The mean of log(cosh(p - t))."""

    default_name: ClassVar[str] = "logcosh"
    measured = losses.LogCosh


class Poisson(LossMean):
    """The mean of p - t · log(p)."""

    measured = losses.Poisson


class KLDivergence(LossMean):
    """The mean of Σ t · log(t / p)."""

    default_name: ClassVar[str] = "kullback_leibler_divergence"
    measured = losses.KLDivergence


class Hinge(LossMean):
    """The mean of max(0, 1 - t · p)."""

    measured = losses.Hinge


class SquaredHinge(LossMean):
    """The mean of max(0, 1 - t · p)²."""

    measured = losses.SquaredHinge


class CategoricalHinge(LossMean):
    """The mean of max(0, 1 + the largest of (1 - t) · p - Σ t · p)."""

    measured = losses.CategoricalHinge


@dataclass(eq=False)
class CosineSimilarity(LossMean):
    """The mean of the cosine of the angle between t and p (the loss is minus this).

    Args:
        axis: the axis of the vectors' elements.
    """

    axis: int = -1

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return -super()._examples(y_true, y_pred)

    measured = losses.CosineSimilarity


@dataclass(eq=False)
class BinaryCrossentropy(LossMean):
    """The mean of the binary cross-entropy.

    Args:
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0

    measured = losses.BinaryCrossentropy


@dataclass(eq=False)
class CategoricalCrossentropy(LossMean):
    """The mean of the categorical cross-entropy.

    Args:
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0

    measured = losses.CategoricalCrossentropy


@dataclass(eq=False)
class SparseCategoricalCrossentropy(LossMean):
    """The mean of the categorical cross-entropy of class numbers.

    Args:
        from_logits: whether predictions are logits, not probabilities.
        ignore_class: a class number whose examples count for nothing.
    """

    from_logits: bool = False
    ignore_class: int | None = None

    measured = losses.SparseCategoricalCrossentropy
