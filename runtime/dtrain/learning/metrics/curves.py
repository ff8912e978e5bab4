"""Metrics of a whole curve: areas under it, and the best value of one quantity given another."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.metrics.confusion import Confusion, precision, recall, specificity
from dtrain.learning.metrics.metric import State, divide_no_nan
from dtrain.types import Array


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

    default_name: ClassVar[str] = "sensitivity_at_specificity"

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

    default_name: ClassVar[str] = "specificity_at_sensitivity"

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

    default_name: ClassVar[str] = "precision_at_recall"

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

    default_name: ClassVar[str] = "recall_at_precision"

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

    default_name: ClassVar[str] = "auc"

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
            x = false_positive_rate(self.state)
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
    """Return the largest of the values at which `where` holds, 0.0 if it holds nowhere."""
    return float(values[where].max()) if where.any() else 0.0


def false_positive_rate(state: State) -> Array:
    """Return the share of negatives that are taken for positives."""
    return np.asarray(
        divide_no_nan(state["false_positives"], state["false_positives"] + state["true_negatives"])
    )


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
