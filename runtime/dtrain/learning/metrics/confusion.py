"""Metrics made of true and false positives and negatives at one or more thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.metrics.metric import Metric, State, divide_no_nan
from dtrain.types import Array

NEVER = -1e10
"""The prediction of a class that is not among the top k: below every threshold."""


class Confusion(Metric):
    """Counts of true and false positives and negatives; a prediction above the threshold is positive."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch: targets 0 and 1, predictions in [0, 1], weights that broadcast to them."""
        y_true = np.asarray(y_true)
        y_pred = np.asarray(y_pred, np.float32)
        if y_true.ndim == y_pred.ndim + 1 and y_true.shape[-1] == 1:
            y_true = y_true[..., 0]
        elif y_pred.ndim == y_true.ndim + 1 and y_pred.shape[-1] == 1:
            y_pred = y_pred[..., 0]
        if y_true.shape != y_pred.shape:
            raise InputError(
                f"{self.name}: expected y_true of y_pred's shape {y_pred.shape}, found {y_true.shape}."
            )
        y_true, y_pred = self._selected(y_true, y_pred)
        weights = np.ones(()) if sample_weight is None else np.asarray(sample_weight, np.float64)
        if 0 < weights.ndim < y_pred.ndim:
            weights = weights.reshape(weights.shape + (1,) * (y_pred.ndim - weights.ndim))
        counts = self._counts(y_true, y_pred, np.broadcast_to(weights, y_pred.shape))
        self.state = {name: total + counts[name] for name, total in self.state.items()}

    def _thresholds(self) -> Array:
        """Return ascending thresholds, float32."""
        raise NotImplementedError

    def _selected(self, y_true: Array, y_pred: Array) -> tuple[Array, Array]:
        """Return the targets and predictions that count."""
        if np.isnan(y_pred).any():
            raise InputError(f"{self.name}: expected predictions in [0, 1], found NaN.")
        return y_true, y_pred

    def _positive(self, y_true: Array) -> Array:
        """Return how far each target is positive, from 0 to 1."""
        return np.asarray(y_true != 0, np.float64)

    def _sums(self) -> dict[str, tuple[int, ...]]:
        names = ("true_positives", "false_positives", "true_negatives", "false_negatives")
        return {name: self._thresholds().shape for name in names}

    def _counts(self, y_true: Array, y_pred: Array, weights: Array) -> State:
        thresholds = self._thresholds()
        positive = self._positive(y_true) * weights
        true_positives = weight_above(thresholds, y_pred, positive)
        false_positives = weight_above(thresholds, y_pred, weights - positive)
        return {
            "true_positives": true_positives,
            "false_positives": false_positives,
            "true_negatives": (weights - positive).sum() - false_positives,
            "false_negatives": positive.sum() - true_positives,
        }


@dataclass(eq=False)
class ThresholdMetric(Confusion):
    """A metric at one threshold (result: a float) or several (an array)."""

    thresholds: float | Sequence[float] | None = None

    def _thresholds(self) -> Array:
        return np.sort(self._given_thresholds())

    def _given_thresholds(self) -> Array:
        return np.atleast_1d(np.asarray(0.5 if self.thresholds is None else self.thresholds, np.float32))

    def result(self) -> Any:
        """Return the metric at each threshold, in the order in which they were given."""
        values = self._values()[np.argsort(np.argsort(self._given_thresholds()))]
        return float(values[0]) if values.size == 1 else values

    def _values(self) -> Array:
        """Return the metric at each threshold, in ascending order."""
        raise NotImplementedError


@dataclass(eq=False)
class TruePositives(ThresholdMetric):
    """Weighted number of true positives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """

    default_name: ClassVar[str] = "true_positives"

    def _values(self) -> Array:
        return self.state["true_positives"]


@dataclass(eq=False)
class FalsePositives(ThresholdMetric):
    """Weighted number of false positives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """

    default_name: ClassVar[str] = "false_positives"

    def _values(self) -> Array:
        return self.state["false_positives"]


@dataclass(eq=False)
class TrueNegatives(ThresholdMetric):
    """Weighted number of true negatives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """

    default_name: ClassVar[str] = "true_negatives"

    def _values(self) -> Array:
        return self.state["true_negatives"]


@dataclass(eq=False)
class FalseNegatives(ThresholdMetric):
    """Weighted number of false negatives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """

    default_name: ClassVar[str] = "false_negatives"

    def _values(self) -> Array:
        return self.state["false_negatives"]


@dataclass(eq=False)
class TopKMetric(ThresholdMetric):
    """A metric that may look at one class only, or take the `top_k` largest predictions as positive."""

    top_k: int | None = None
    class_id: int | None = None

    def _given_thresholds(self) -> Array:
        if self.thresholds is None and self.top_k is not None:
            return np.array([NEVER], np.float32)
        return super()._given_thresholds()

    def _selected(self, y_true: Array, y_pred: Array) -> tuple[Array, Array]:
        y_true, y_pred = super()._selected(y_true, y_pred)
        if self.top_k is not None:
            others = np.argsort(-y_pred, axis=-1, kind="stable")[..., self.top_k :]
            y_pred = y_pred.copy()
            np.put_along_axis(y_pred, others, NEVER, axis=-1)
        if self.class_id is not None:
            y_true = y_true[..., self.class_id]
            y_pred = y_pred[..., self.class_id]
        return y_true, y_pred


@dataclass(eq=False)
class Precision(TopKMetric):
    """The share of positive predictions that are right.

    Shapes: targets 0 and 1 and predictions [batch, ...]; with `top_k` or `class_id` [batch, ..., classes].

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
        top_k: how many of the largest predictions along the last axis are positive; None: those above the
            threshold.
        class_id: the place of the last axis that is looked at; None: all.
    """

    default_name: ClassVar[str] = "precision"

    def _values(self) -> Array:
        return precision(self.state)


@dataclass(eq=False)
class Recall(TopKMetric):
    """The share of positive targets that are found.

    Shapes: targets 0 and 1 and predictions [batch, ...]; with `top_k` or `class_id` [batch, ..., classes].

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
        top_k: how many of the largest predictions along the last axis are positive; None: those above the
            threshold.
        class_id: the place of the last axis that is looked at; None: all.
    """

    default_name: ClassVar[str] = "recall"

    def _values(self) -> Array:
        return recall(self.state)


def weight_above(thresholds: Array, y_pred: Array, weights: Array) -> Array:
    """Return for each of the ascending thresholds the summed weight of the predictions above it."""
    below = np.searchsorted(thresholds, y_pred.reshape(-1))  # the number of thresholds below each prediction
    weight_by_rank = np.bincount(below, weights.reshape(-1), minlength=len(thresholds) + 1)
    from_above: Array = weight_by_rank[::-1].cumsum()[::-1]
    return from_above[1:]


def precision(state: State) -> Array:
    """Return the share of positive predictions that are right."""
    return np.asarray(
        divide_no_nan(state["true_positives"], state["true_positives"] + state["false_positives"])
    )


def recall(state: State) -> Array:
    """Return the share of positives that are found (sensitivity)."""
    return np.asarray(
        divide_no_nan(state["true_positives"], state["true_positives"] + state["false_negatives"])
    )


def specificity(state: State) -> Array:
    """Return the share of negatives that are found."""
    return np.asarray(
        divide_no_nan(state["true_negatives"], state["true_negatives"] + state["false_positives"])
    )
