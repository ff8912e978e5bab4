"""Metrics of true and false positives and negatives: at thresholds, over a whole curve, or by class."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.losses.loss import same_shape
from dtrain.learning.metrics.metric import Metric, State, divide_no_nan
from dtrain.types import Array

NEVER = -1e10
"""The prediction of a class that is not among the top k: below every threshold."""


class Confusion(Metric):
    """Counts of true and false positives and negatives; a prediction above the threshold is positive."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch: targets 0 and 1, predictions in [0, 1], weights that broadcast to them."""
        y_pred = np.asarray(y_pred, np.float32)
        y_true = without_last_axis(np.asarray(y_true), y_pred.ndim)
        y_pred = without_last_axis(y_pred, y_true.ndim)
        y_true, y_pred = self._selected(same_shape(self.name, y_true, y_pred), y_pred)
        weights = np.ones(()) if sample_weight is None else np.asarray(sample_weight, np.float64)
        if 0 < weights.ndim < y_pred.ndim:
            weights = weights.reshape(weights.shape + (1,) * (y_pred.ndim - weights.ndim))
        counts = self._counts(y_true, y_pred, np.broadcast_to(weights, y_pred.shape))
        self.state = {name: total + counts[name] for name, total in self.state.items()}

    def _thresholds(self) -> Array:
        raise NotImplementedError

    def _selected(self, y_true: Array, y_pred: Array) -> tuple[Array, Array]:
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
        """Return the metric at each threshold: the count of the metric's name, or what is made of counts."""
        return self.state[self.default_name]


class TruePositives(ThresholdMetric):
    """Weighted number of true positives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """


class FalsePositives(ThresholdMetric):
    """Weighted number of false positives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """


class TrueNegatives(ThresholdMetric):
    """Weighted number of true negatives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """


class FalseNegatives(ThresholdMetric):
    """Weighted number of false negatives.

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
    """


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


class Precision(TopKMetric):
    """The share of positive predictions that are right.

    Shapes: targets 0 and 1 and predictions [batch, ...]; with `top_k` or `class_id` [batch, ..., classes].

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
        top_k: how many of the largest predictions along the last axis are positive; None: those above the
            threshold.
        class_id: the place of the last axis that is looked at; None: all.
    """

    def _values(self) -> Array:
        return precision(self.state)


class Recall(TopKMetric):
    """The share of positive targets that are found.

    Shapes: targets 0 and 1 and predictions [batch, ...]; with `top_k` or `class_id` [batch, ..., classes].

    Args:
        thresholds: above it a prediction, from 0 to 1, is positive; one, or several; None: 0.5.
        top_k: how many of the largest predictions along the last axis are positive; None: those above the
            threshold.
        class_id: the place of the last axis that is looked at; None: all.
    """

    def _values(self) -> Array:
        return recall(self.state)


def weight_above(thresholds: Array, y_pred: Array, weights: Array) -> Array:
    """Return for each of the ascending thresholds the summed weight of the predictions above it."""
    below = np.searchsorted(thresholds, y_pred.reshape(-1))  # the number of thresholds below each prediction
    weight_by_rank = np.bincount(below, weights.reshape(-1), minlength=len(thresholds) + 1)
    from_above: Array = weight_by_rank[::-1].cumsum()[::-1]
    return from_above[1:]


def share(state: State, part: str, rest: str) -> Array:
    """Return the share of `part` in the sum of both; 0 where that is 0."""
    return np.asarray(divide_no_nan(state[part], state[part] + state[rest]))


def precision(state: State) -> Array:
    return share(state, "true_positives", "false_positives")


def recall(state: State) -> Array:
    return share(state, "true_positives", "false_negatives")


def specificity(state: State) -> Array:
    return share(state, "true_negatives", "false_positives")


class SpacedThresholds(Confusion):
    """Counts at `num_thresholds` evenly spaced thresholds, the first below 0 and the last above 1."""

    num_thresholds: int

    def _thresholds(self) -> Array:
        inner = np.arange(1, self.num_thresholds - 1) / (self.num_thresholds - 1)
        return np.array([-1e-7, *inner, 1 + 1e-7], np.float32)

    def _positive(self, y_true: Array) -> Array:
        return y_true.astype(np.float64)


@dataclass(eq=False)
class SensitivityAtSpecificity(SpacedThresholds):
    """The best share of positives found, at thresholds where at least this share of negatives is found.

    Args:
        specificity: the least share of negatives that is found.
        num_thresholds: how many evenly spaced thresholds are tried.
    """

    specificity: float
    num_thresholds: int = 200

    def result(self) -> float:
        """Return the best sensitivity, 0.0 if no threshold will do."""
        return best(recall(self.state), where=specificity(self.state) >= self.specificity)


@dataclass(eq=False)
class SpecificityAtSensitivity(SpacedThresholds):
    """The best share of negatives found, at thresholds where at least this share of positives is found.

    Args:
        sensitivity: the least share of positives that is found.
        num_thresholds: how many evenly spaced thresholds are tried.
    """

    sensitivity: float
    num_thresholds: int = 200

    def result(self) -> float:
        """Return the best specificity, 0.0 if no threshold will do."""
        return best(specificity(self.state), where=recall(self.state) >= self.sensitivity)


@dataclass(eq=False)
class PrecisionAtRecall(SpacedThresholds):
    """The best precision, at thresholds where recall is at least this.

    Args:
        recall: the least recall.
        num_thresholds: how many evenly spaced thresholds are tried.
    """

    recall: float
    num_thresholds: int = 200

    def result(self) -> float:
        """Return the best precision, 0.0 if no threshold will do."""
        return best(precision(self.state), where=recall(self.state) >= self.recall)


@dataclass(eq=False)
class RecallAtPrecision(SpacedThresholds):
    """The best recall, at thresholds where precision is at least this.

    Args:
        precision: the least precision.
        num_thresholds: how many evenly spaced thresholds are tried.
    """

    precision: float
    num_thresholds: int = 200

    def result(self) -> float:
        """Return the best recall, 0.0 if no threshold will do."""
        return best(recall(self.state), where=precision(self.state) >= self.precision)


@dataclass(eq=False)
class AUC(SpacedThresholds):
    """The area under the ROC curve (recall over false positive rate) or the PR curve (precision over recall).

    Attributes:
        num_thresholds: of evenly spaced thresholds.
        curve: `ROC` or `PR`.
        summation_method: height between two thresholds: `interpolation`, `minoring` or `majoring`.
        thresholds: instead of evenly spaced ones; 0 and 1 are added.
        multi_label: predictions have shape [batch, labels], and the result is the mean of the labels' areas.
        num_labels: with `multi_label`, how many labels; None: as the first batch says.
        label_weights: with `multi_label`, weights of that mean.
        from_logits: whether predictions are logits.
    """

    num_thresholds: int = 200
    curve: str = "ROC"
    summation_method: str = "interpolation"
    _: KW_ONLY
    thresholds: Sequence[float] | None = None
    multi_label: bool = False
    num_labels: int | None = None
    label_weights: Sequence[float] | None = None
    from_logits: bool = False

    def __post_init__(self) -> None:
        if self.curve not in ("ROC", "PR"):
            raise SpecError(f"AUC: expected a curve ROC or PR, found {self.curve!r}.")
        if self.summation_method not in ("interpolation", "minoring", "majoring"):
            raise SpecError(
                f"AUC: expected interpolation, minoring or majoring, found {self.summation_method!r}."
            )
        super().__post_init__()

    def result(self) -> float:
        """Return the area, or with `multi_label` the mean of the labels' areas."""
        areas = self._areas()
        return float(np.average(areas, weights=self.label_weights) if self.multi_label else areas)

    def _areas(self) -> Array:
        if self.curve == "PR" and self.summation_method == "interpolation":
            return interpolated_precision_area(self.state)
        if self.curve == "PR":
            x = recall(self.state)
            y = precision(self.state)
        else:
            x = share(self.state, "false_positives", "true_negatives")
            y = recall(self.state)
        left = y[:-1]
        right = y[1:]
        if self.summation_method == "interpolation":
            heights = (left + right) / 2
        else:
            heights = (
                np.minimum(left, right) if self.summation_method == "minoring" else np.maximum(left, right)
            )
        return np.asarray(((x[:-1] - x[1:]) * heights).sum(axis=0))

    def _thresholds(self) -> Array:
        if self.thresholds is None:
            return super()._thresholds()
        return np.array([-1e-7, *sorted(self.thresholds), 1 + 1e-7], np.float32)

    def _positive(self, y_true: Array) -> Array:
        return super()._positive(y_true) if self.thresholds is None else Confusion._positive(self, y_true)

    def _selected(self, y_true: Array, y_pred: Array) -> tuple[Array, Array]:
        if self.from_logits:
            y_pred = np.exp(-np.logaddexp(0, -y_pred))
        return super()._selected(y_true, y_pred)

    def _sums(self) -> dict[str, tuple[int, ...]]:
        labels = (self.num_labels or 1,) if self.multi_label else ()
        return {name: (*shape, *labels) for name, shape in super()._sums().items()}

    def _counts(self, y_true: Array, y_pred: Array, weights: Array) -> State:
        if not self.multi_label:
            return super()._counts(y_true, y_pred, weights)
        if y_pred.ndim != 2:
            raise InputError(
                f"{self.name}: expected predictions of shape [batch, labels], found {y_pred.shape}."
            )
        columns = [
            super(AUC, self)._counts(y_true[:, i], y_pred[:, i], weights[:, i])
            for i in range(y_pred.shape[1])
        ]
        return {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}


def best(values: Array, where: Array) -> float:
    return float(values[where].max()) if where.any() else 0.0


def interpolated_precision_area(state: State) -> Array:
    """Return the area under the PR curve, interpolated between thresholds as by Davis and Goadrich."""
    found = state["true_positives"]
    predicted = state["true_positives"] + state["false_positives"]
    gained = found[:-1] - found[1:]
    slope = divide_no_nan(gained, np.maximum(predicted[:-1] - predicted[1:], 0))
    intercept = found[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    ratio = np.where(both, divide_no_nan(predicted[:-1], predicted[1:]), 1.0)
    log_ratio = np.log(ratio, out=np.zeros_like(ratio), where=ratio > 0)
    positives = found[1:] + state["false_negatives"][1:]
    return np.asarray(divide_no_nan(slope * (gained + intercept * log_ratio), positives).sum(axis=0))


@dataclass(eq=False)
class MeanIoU(Metric):
    """Mean over classes of true positives / (true positives + false positives + false negatives).

    Shapes: class numbers of one shape.

    Args:
        num_classes: how many classes there are.
    """

    num_classes: int

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch of class numbers of one shape, with a weight for each."""
        truth = np.asarray(y_true).reshape(-1).astype(np.int64)
        predicted = np.asarray(y_pred).reshape(-1).astype(np.int64)
        if truth.shape != predicted.shape:
            raise InputError(
                f"{self.name}: expected y_true of y_pred's shape {np.shape(y_pred)}, found "
                f"{np.shape(y_true)}."
            )
        for classes in (truth, predicted):
            if classes.size and (classes.min() < 0 or classes.max() >= self.num_classes):
                raise InputError(
                    f"{self.name}: expected class numbers in [0, {self.num_classes}), found {classes.min()} "
                    f"to {classes.max()}."
                )
        weights = (
            None if sample_weight is None else np.broadcast_to(sample_weight, np.shape(y_true)).reshape(-1)
        )
        cells = np.bincount(truth * self.num_classes + predicted, weights, minlength=self.num_classes**2)
        self.state["total_confusion_matrix"] += cells.reshape(self.num_classes, self.num_classes)

    def result(self) -> float:
        """Return the mean over the classes that occur in targets or predictions."""
        matrix = self.state["total_confusion_matrix"]
        hits = np.diag(matrix)
        union = matrix.sum(axis=0) + matrix.sum(axis=1) - hits
        return float(divide_no_nan(divide_no_nan(hits, union).sum(), np.count_nonzero(union)))

    def _sums(self) -> dict[str, tuple[int, ...]]:
        return {"total_confusion_matrix": (self.num_classes, self.num_classes)}
