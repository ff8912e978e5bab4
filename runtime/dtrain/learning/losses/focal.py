"""Focal cross-entropies, of examples that are predicted well little. Source: Lin et al., 2018, equation 5."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.losses.crossentropy import BinaryCrossentropy, Crossentropy, smoothed, softmax_parts
from dtrain.learning.losses.loss import EPSILON, ElementMean, Gradient, Loss
from dtrain.types import Array


class _Focal(Crossentropy):
    """Base of the focal losses: logits go through the activation, and so does the gradient."""

    def from_logits_of(self, activation: str) -> Loss | None:
        """Return None: these losses are computed from probabilities."""
        return None


@dataclass
class BinaryFocalCrossentropy(_Focal, ElementMean):
    """The binary cross-entropy times (1 - q)^gamma, q being the probability of the target.

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
class CategoricalFocalCrossentropy(_Focal):
    """The cross-entropy of classes, each term times alpha · (1 - p)^gamma; targets are distributions.

    Shapes: targets and predictions [batch, ..., classes]; one loss for each place of [batch, ...].

    Args:
        alpha: the weight of all classes.
        gamma: how little examples weigh that are predicted well; 0: as others.
        from_logits: whether predictions are logits, not probabilities.
        label_smoothing: how far targets are moved towards equal shares, from 0 to 1.
    """

    activation: ClassVar[str] = "softmax"

    alpha: float = 0.25
    gamma: float = 2.0
    from_logits: bool = False
    label_smoothing: float = 0.0

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        t = smoothed(y_true, self.label_smoothing, y_pred.shape[-1])
        scores = y_pred
        if self.from_logits:
            _, exponentials, total = softmax_parts(y_pred)
            scores = exponentials / total
        total = scores.sum(axis=-1, keepdims=True)
        share = scores / total
        p = np.clip(share, EPSILON, 1.0 - EPSILON)
        far = 1.0 - p
        losses = (-self.alpha * far**self.gamma * t * np.log(p)).sum(axis=-1)

        def gradient() -> Array:
            by_far = self.gamma * far ** (self.gamma - 1.0) * np.log(p) if self.gamma else 0.0
            by_share = self.alpha * t * (by_far - far**self.gamma / p) * (p == share)
            by_score = (by_share - (by_share * share).sum(axis=-1, keepdims=True)) / total
            if self.from_logits:
                by_score = scores * (by_score - (by_score * scores).sum(axis=-1, keepdims=True))
            return np.asarray(by_score, y_pred.dtype)

        return np.asarray(losses, y_pred.dtype), gradient
