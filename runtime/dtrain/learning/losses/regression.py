"""Losses for numbers, distributions and directions: squared, absolute, logarithmic and other distances."""

import math
from dataclasses import dataclass

import numpy as np

from dtrain.learning.losses.loss import EPSILON, ElementMean, Gradient, Loss
from dtrain.types import Array


class MeanSquaredError(ElementMean):
    """The squared error (p - t)², the mean over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        error = y_pred - y_true
        return error * error, lambda: 2.0 * error


class MeanAbsoluteError(ElementMean):
    """The absolute error |p - t|, the mean over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        error = y_pred - y_true
        return np.abs(error), lambda: np.sign(error)


class MeanAbsolutePercentageError(ElementMean):
    """The error in percent of the target, 100 · |(p - t) / t|, the mean over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        error = y_pred - y_true
        size = np.maximum(np.abs(y_true), EPSILON)
        return 100.0 * np.abs(error / size), lambda: 100.0 * np.sign(error) / size


class MeanSquaredLogarithmicError(ElementMean):
    """The squared error of logarithms, (log(1 + p) - log(1 + t))², negative numbers taken as zero; the mean
    over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        kept = np.maximum(y_pred, EPSILON)
        error = np.log(kept + 1.0) - np.log(np.maximum(y_true, EPSILON) + 1.0)
        return error * error, lambda: 2.0 * error / (kept + 1.0) * (y_pred >= EPSILON)


@dataclass
class Huber(ElementMean):
    """Half the square of p - t where that is at most delta, beyond it a straight line; the mean over the last
    axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].

    Args:
        delta: where the straight line begins.
    """

    delta: float = 1.0

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        error = y_pred - y_true
        limited = np.clip(error, -self.delta, self.delta)
        return limited * (error - 0.5 * limited), lambda: limited


class LogCosh(ElementMean):
    """log(cosh(p - t)), the mean over the last axis: like half a square near 0, and like |p - t| far from it.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        error = y_pred - y_true
        return error + np.logaddexp(0.0, -2.0 * error) - math.log(2.0), lambda: np.tanh(error)


class Poisson(ElementMean):
    """p - t · log(p): the Poisson distribution's negative log-likelihood, without its constant.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        kept = y_pred + EPSILON
        return y_pred - y_true * np.log(kept), lambda: 1.0 - y_true / kept


class Hinge(ElementMean):
    """max(0, 1 - t · p), with targets -1 and 1 (or 0 and 1).

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        sign = signs(y_true)
        margin = np.maximum(1.0 - sign * y_pred, 0.0)
        return margin, lambda: -sign * (margin > 0)


class SquaredHinge(ElementMean):
    """max(0, 1 - t · p)², with targets -1 and 1 (or 0 and 1).

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        sign = signs(y_true)
        margin = np.maximum(1.0 - sign * y_pred, 0.0)
        return margin * margin, lambda: -2.0 * sign * margin


class CategoricalHinge(Loss):
    """max(0, 1 + the largest of (1 - t) · p - Σ t · p) over the last axis, with one-hot targets.

    Shapes: targets and predictions [batch, ..., classes]; one loss for each place of [batch, ...].
    """

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        others = (1.0 - y_true) * y_pred
        margin = 1.0 + others.max(axis=-1) - (y_true * y_pred).sum(axis=-1)

        def gradient() -> Array:
            first = np.arange(y_pred.shape[-1]) == others.argmax(axis=-1)[..., np.newaxis]
            return np.asarray(((1.0 - y_true) * first - y_true) * (margin > 0)[..., np.newaxis])

        return np.maximum(margin, 0.0), gradient


class KLDivergence(Loss):
    """Sum of t · log(t / p) over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].
    """

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t = np.clip(y_true, EPSILON, 1.0)
        p = np.clip(y_pred, EPSILON, 1.0)
        return (t * np.log(t / p)).sum(axis=-1), lambda: -t / p * (p == y_pred)


@dataclass
class CosineSimilarity(Loss):
    """Minus the cosine of the angle between t and p, vectors along the last axis (or `axis`).

    The loss is between -1 (one direction) and 1 (opposite).

    Args:
        axis: the axis of the vectors' elements.
    """

    axis: int = -1

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t, _ = unit(y_true, self.axis)
        p, length = unit(y_pred, self.axis)
        cosine = (t * p).sum(axis=self.axis, keepdims=True)
        return -cosine.squeeze(self.axis), lambda: (cosine * p - t) / length


def signs(y_true: Array) -> Array:
    """Return targets as -1 and 1; 0 becomes -1 where all targets are 0 or 1."""
    binary = np.all((y_true == 0) | (y_true == 1))
    return 2.0 * y_true - 1.0 if binary else y_true


def unit(vectors: Array, axis: int) -> tuple[Array, Array]:
    """Return vectors along `axis` at length 1, and their lengths (at least 1e-6)."""
    length = np.sqrt(np.maximum((vectors * vectors).sum(axis=axis, keepdims=True), 1e-12))
    return vectors / length, length
