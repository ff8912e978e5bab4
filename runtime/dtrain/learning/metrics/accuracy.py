"""Metrics of how often predictions agree with targets."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.losses.loss import same_shape
from dtrain.learning.metrics.metric import MeanOfExamples
from dtrain.types import Array


class Accuracy(MeanOfExamples):
    """Share of predictions that equal the target."""

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return np.equal(same_shape(self.name, y_true, y_pred), y_pred)


@dataclass(eq=False)
class BinaryAccuracy(MeanOfExamples):
    """Share of predictions above the threshold for targets 1, not above it for 0; mean over the last axis.

    Args:
        threshold: above it a prediction says 1.
    """

    threshold: float = 0.5

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        agree: Array = same_shape(self.name, y_true, y_pred) == (y_pred > self.threshold)
        return agree if agree.ndim < 2 else np.mean(agree, axis=-1)


class CategoricalAccuracy(MeanOfExamples):
    """Share of examples whose largest prediction is at the largest target; classes along the last axis."""

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return np.asarray(same_shape(self.name, y_true, y_pred).argmax(axis=-1) == y_pred.argmax(axis=-1))


class SparseCategoricalAccuracy(MeanOfExamples):
    """Share of examples whose largest prediction stands at the target, a class number."""

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return np.asarray(class_numbers(self, y_true, y_pred) == y_pred.argmax(axis=-1))


@dataclass(eq=False)
class TopKCategoricalAccuracy(MeanOfExamples):
    """Share of examples in which fewer than `k` predictions exceed the one at the largest target.

    Args:
        k: how many predictions may be as large.
    """

    k: int = 5

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return in_top_k(same_shape(self.name, y_true, y_pred).argmax(axis=-1), y_pred, self.k)


@dataclass(eq=False)
class SparseTopKCategoricalAccuracy(MeanOfExamples):
    """Share of examples in which fewer than `k` predictions exceed the one at the target, a class number.

    Args:
        k: how many predictions may be as large.
    """

    k: int = 5

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        return in_top_k(class_numbers(self, y_true, y_pred), y_pred, self.k)


class AccuracyByShape(MeanOfExamples):
    """Keras's `metrics=["accuracy"]`: binary, sparse categorical or categorical, by the batch's shapes."""

    default_name: ClassVar[str] = "accuracy"

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        rule: MeanOfExamples
        if y_pred.ndim < 2 or y_pred.shape[-1] == 1:
            rule = BinaryAccuracy(self.name)
        elif y_true.ndim < y_pred.ndim or y_true.shape[-1] == 1:
            rule = SparseCategoricalAccuracy(self.name)
        else:
            rule = CategoricalAccuracy(self.name)
        return rule._examples(y_true, y_pred)


def in_top_k(classes: Array, y_pred: Array, k: int) -> Array:
    """Return whether fewer than k predictions exceed that of the class; False where they are not finite."""
    at_class = np.take_along_axis(y_pred, classes[..., np.newaxis].astype(np.int64), axis=-1)
    larger: Array = (y_pred > at_class).sum(axis=-1)
    return np.logical_and(larger < k, np.isfinite(y_pred).all(axis=-1))


def class_numbers(metric: MeanOfExamples, y_true: Array, y_pred: Array) -> Array:
    y_true = without_last_axis(y_true, y_pred.ndim - 1)
    if y_true.shape != y_pred.shape[:-1]:
        raise InputError(
            f"{metric.name}: expected class numbers of shape {y_pred.shape[:-1]}, found {y_true.shape}."
        )
    return y_true
