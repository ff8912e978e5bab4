"""The focal cross-entropy, of examples that are predicted well little (Lin et al., 2018, equation 5)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dtrain.learning.losses.crossentropy import BinaryCrossentropy, Crossentropy, smoothed
from dtrain.learning.losses.loss import ElementMean, Gradient, Loss
from dtrain.types import Array


@dataclass
class BinaryFocalCrossentropy(Crossentropy, ElementMean):
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
