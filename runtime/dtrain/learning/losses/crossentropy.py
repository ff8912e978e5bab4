"""Losses for classes, stable from logits; probabilities are kept off 0 and 1."""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.losses.loss import EPSILON, ElementMean, Gradient, Loss
from dtrain.types import Array


@dataclass
class Crossentropy(Loss):
    """Base of the cross-entropies; predictions are probabilities, or logits for `activation`."""

    activation: ClassVar[str]

    from_logits: bool = False

    def from_logits_of(self, activation: str) -> Loss | None:
        """Return this loss of the logits, if the activation is the one that belongs to it.

        As in Keras they are taken also where this is a loss of logits already, with a warning.
        """
        if activation != self.activation:
            return None
        if self.from_logits:
            warnings.warn(
                f"{type(self).__name__}: found from_logits=True and an output layer with {activation}; the "
                f"values before {activation} are taken as logits: leave one of the two out",
                stacklevel=2,
            )
        return replace(self, from_logits=True)


@dataclass
class BinaryCrossentropy(Crossentropy, ElementMean):
    """The cross-entropy of yes and no: -t · log(p) - (1 - t) · log(1 - p), the mean over the last axis.

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].

    Args:
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    activation: ClassVar[str] = "sigmoid"

    label_smoothing: float = 0.0

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t = smoothed(y_true, self.label_smoothing, 2)
        if self.from_logits:
            small = np.exp(-np.abs(y_pred))
            elements = np.maximum(y_pred, 0.0) - y_pred * t + np.log1p(small)
            return elements, lambda: np.where(y_pred >= 0, 1.0, small) / (1.0 + small) - t
        p = np.clip(y_pred, EPSILON, 1.0 - EPSILON)
        yes = p + EPSILON
        no = 1.0 - p + EPSILON
        elements = -(t * np.log(yes) + (1.0 - t) * np.log(no))
        return elements, lambda: ((1.0 - t) / no - t / yes) * (p == y_pred)


@dataclass
class BinaryFocalCrossentropy(Crossentropy, ElementMean):
    """The binary cross-entropy times (1 - q)^gamma, q being the probability of the target (Lin et al., 2018).

    Shapes: targets and predictions [batch, ..., outputs]; one loss for each place of [batch, ...].

    Args:
        apply_class_balancing: whether class 1 weighs `alpha` and class 0 weighs 1 - `alpha`.
        alpha: the weight of class 1.
        gamma: how little examples weigh that are predicted well; 0: as others.
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    activation: ClassVar[str] = "sigmoid"

    apply_class_balancing: bool = False
    alpha: float = 0.25
    gamma: float = 2.0
    from_logits: bool = False
    label_smoothing: float = 0.0

    def from_logits_of(self, activation: str) -> Loss | None:
        """Return None: it is computed from probabilities."""
        return None

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t = smoothed(y_true, self.label_smoothing, 2)
        plain = BinaryCrossentropy(self.from_logits, self.label_smoothing)
        entropy, slope = plain._elements(y_true, y_pred)
        p = 1.0 / (1.0 + np.exp(-y_pred)) if self.from_logits else y_pred
        far = 1.0 - (t * p + (1.0 - t) * (1.0 - p))
        weight = t * self.alpha + (1.0 - t) * (1.0 - self.alpha) if self.apply_class_balancing else 1.0
        focal = far**self.gamma

        def derivative() -> Array:
            by_far = self.gamma * far ** (self.gamma - 1.0) * (1.0 - 2.0 * t) if self.gamma else 0.0
            by_p = by_far * p * (1.0 - p) if self.from_logits else by_far
            return np.asarray(weight * (by_p * entropy + focal * slope()), y_pred.dtype)

        return np.asarray(weight * focal * entropy, y_pred.dtype), derivative


@dataclass
class CategoricalCrossentropy(Crossentropy):
    """The cross-entropy of classes: -Σ t · log(p) over the last axis; targets are distributions, such as
    one-hot vectors.

    Shapes: targets and predictions [batch, ..., classes]; one loss for each place of [batch, ...].

    Args:
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    activation: ClassVar[str] = "softmax"

    label_smoothing: float = 0.0

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t = smoothed(y_true, self.label_smoothing, y_pred.shape[-1])
        if self.from_logits:
            shifted, exponentials, total = softmax_parts(y_pred)
            mass = t.sum(axis=-1, keepdims=True)
            losses = mass[..., 0] * np.log(total[..., 0]) - (t * shifted).sum(axis=-1)
            return losses, lambda: exponentials * (mass / total) - t
        total = y_pred.sum(axis=-1, keepdims=True)
        share = y_pred / total
        p = np.clip(share, EPSILON, 1.0 - EPSILON)

        def gradient() -> Array:
            by_share = -t / p * (p == share)
            return np.asarray((by_share - (by_share * share).sum(axis=-1, keepdims=True)) / total)

        return -(t * np.log(p)).sum(axis=-1), gradient


@dataclass
class SparseCategoricalCrossentropy(Crossentropy):
    """The cross-entropy of class numbers: -log(p[t]).

    Shapes: targets are whole numbers [batch, ...] or [batch, ..., 1], predictions [batch, ..., classes].

    Attributes:
        ignore_class: a class number whose examples count for nothing, not even in the mean's divisor.
        from_logits: whether predictions are logits, not probabilities.
    """

    activation: ClassVar[str] = "softmax"

    ignore_class: int | None = None

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        classes = y_pred.shape[-1]
        labels = y_true.reshape(-1)
        ignored = None if self.ignore_class is None else labels == self.ignore_class
        if ignored is not None:
            labels = np.where(ignored, 0, labels)
        if labels.size and (labels.min() < 0 or labels.max() >= classes):
            wrong = labels[(labels < 0) | (labels >= classes)][0]
            raise InputError(
                f"{type(self).__name__}: expected class numbers in [0, {classes}), found {wrong}."
            )
        rows = np.arange(labels.size)
        p = None if self.from_logits else np.clip(y_pred, EPSILON, 1.0 - EPSILON)
        logits = y_pred if p is None else np.log(p)
        shifted, exponentials, total = softmax_parts(logits.reshape(-1, classes))
        losses = np.log(total[:, 0]) - shifted[rows, labels]
        if ignored is not None:
            losses[ignored] = 0.0

        def gradient() -> Array:
            by_logits = np.divide(exponentials, total, out=exponentials)
            by_logits[rows, labels] -= 1.0
            if ignored is not None:
                by_logits[ignored] = 0.0
            result = by_logits.reshape(y_pred.shape)
            return result if p is None else result / p * (p == y_pred)

        return losses.reshape(y_pred.shape[:-1]), gradient

    def _targets(self, y_true: Array, y_pred: Array) -> Array:
        y_true = without_last_axis(y_true, y_pred.ndim - 1)
        if y_true.shape != y_pred.shape[:-1]:
            raise InputError(
                f"{type(self).__name__}: expected class numbers of shape {y_pred.shape[:-1]} for predictions "
                f"of shape {y_pred.shape}, found {y_true.shape}."
            )
        if y_true.dtype.kind in "iu":
            return y_true
        with np.errstate(invalid="ignore"):
            labels = y_true.astype(np.int64) if y_true.dtype.kind in "fb" else np.zeros(0)
        wrong = y_true if labels.shape != y_true.shape else y_true[labels != y_true]
        if wrong.size:
            raise InputError(
                f"{type(self).__name__}: expected whole class numbers, found {y_true.dtype} such as "
                f"{wrong.flat[0]}."
            )
        return labels

    def _examples(self, y_true: Array, losses: Array) -> int:
        return losses.size if self.ignore_class is None else int((y_true != self.ignore_class).sum())


def smoothed(targets: Array, label_smoothing: float, classes: int) -> Array:
    """Return targets moved towards equal shares of the classes."""
    return targets * (1.0 - label_smoothing) + label_smoothing / classes if label_smoothing else targets


def softmax_parts(logits: Array) -> tuple[Array, Array, Array]:
    """Return logits minus their largest, the exponentials, and their sum with the last axis kept."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return shifted, exponentials, exponentials.sum(axis=-1, keepdims=True)
