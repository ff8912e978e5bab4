"""The base of all losses: per-example losses, weights, a reduction, and the gradient by the predictions.

A rule computes the losses of single examples and a function that gives their gradients when asked; weights
and reduction are the same for all (tf.keras.losses of TensorFlow 2.15).
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning.core.configuration import Configurable
from dtrain.types import Array

Gradient = Callable[[], Array]

EPSILON = 1e-7
"""Keras's fuzz factor: probabilities are kept this far from 0 and 1."""

REDUCTIONS = ("auto", "sum_over_batch_size", "sum", "none")


class Reduction:
    """Names of reductions; see `tf.keras.losses.Reduction`."""

    AUTO, SUM_OVER_BATCH_SIZE, SUM, NONE = REDUCTIONS


@dataclass
class Loss(Configurable):
    """Base of all losses.

    Attributes:
        reduction: `sum_over_batch_size` (or `auto`): the mean over all examples; `sum`; or `none`: one loss
            an example.
        name: only for the user.
    """

    _: KW_ONLY
    reduction: str = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise SpecError(
                f"{type(self).__name__}: expected a reduction of {', '.join(REDUCTIONS)}, found "
                f"{self.reduction!r}."
            )

    @property
    def is_mean(self) -> bool:
        """True if the loss is a mean over examples; else it is a sum."""
        return self.reduction not in ("sum", "none")

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the reduced loss: a float32 scalar; with reduction `none` an array of one loss an example.

        Args:
            y_true: targets; shape of `y_pred`, or without its last axis where they are class numbers.
            y_pred: predictions, shape [batch, ..., outputs].
            sample_weight: a number, or an array that broadcasts to the losses, whose shape is [batch, ...].

        Raises:
            InputError: shapes do not fit, or a class number is out of range.
        """
        losses, weights, divisor, _ = self._weighted(y_true, y_pred, sample_weight)
        if weights is not None:
            losses = losses * weights
        return losses if self.reduction == "none" else losses.dtype.type(losses.sum() / divisor)

    def value_and_gradient(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[float, Array]:
        """Return the loss (summed, if the reduction is `none`) and its gradient, of `y_pred`'s shape."""
        losses, weights, divisor, gradient_of = self._weighted(y_true, y_pred, sample_weight)
        gradient = gradient_of()
        if weights is None:
            value = losses.sum()
            if divisor != 1:
                gradient *= 1.0 / divisor
        else:
            value = (losses * weights).sum()
            gradient *= np.broadcast_to(weights / divisor, losses.shape)[..., np.newaxis]
        return float(value / divisor), gradient.reshape(np.shape(y_pred))

    def of_each(self, y_true: Any, y_pred: Any) -> tuple[Array, Array]:
        """Return one loss an example, and the gradient of each by its predictions, of `y_pred`'s shape."""
        losses, _, _, gradient_of = self._weighted(y_true, y_pred, None)
        return losses, gradient_of().reshape(np.shape(y_pred))

    def from_logits_of(self, activation: str) -> "Loss | None":
        """Return this loss as a function of an activation function's input; None if it needs the output."""
        return None

    # What a rule says

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        """Return losses `[y_pred.shape[:-1]]` and a function that returns their gradients, a new array."""
        raise ProgramError(
            f"{type(self).__name__}: there is no automatic differentiation, so `call` is not enough; write "
            "_losses(y_true, y_pred), which returns a loss for each example and a function that returns "
            "their gradients by y_pred, or train with dt.from_torch"
        )

    def _targets(self, y_true: Array, y_pred: Array) -> Array:
        """Return targets as `_losses` wants them: here, of y_pred's shape and dtype."""
        if y_true.ndim == y_pred.ndim - 1 and y_pred.shape[-1] == 1:
            y_true = y_true[..., np.newaxis]
        if y_true.shape != y_pred.shape:
            raise InputError(
                f"{type(self).__name__}: expected y_true of y_pred's shape {y_pred.shape}, found "
                f"{y_true.shape}."
            )
        return y_true.astype(y_pred.dtype, copy=False)

    def _examples(self, y_true: Array, losses: Array) -> int:
        """Return how many losses count in a mean."""
        return losses.size

    # Inner parts

    def _weighted(
        self, y_true: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[Array, Array | None, int, Gradient]:
        if y_true is None:
            raise InputError(f"{type(self).__name__}: expected targets, found none.")
        y_true = np.asarray(y_true)
        y_pred = np.asarray(y_pred)
        if y_pred.dtype.kind != "f":
            y_pred = y_pred.astype(np.float32)
        if y_pred.ndim == 0:
            raise InputError(
                f"{type(self).__name__}: expected predictions of shape [batch, ...], found a single number."
            )
        if y_pred.ndim == 1:
            y_pred = y_pred[:, np.newaxis]
        y_true = self._targets(y_true, y_pred)
        losses, gradient = self._losses(y_true, y_pred)
        weights = None if sample_weight is None else self._weights(sample_weight, losses)
        divisor = 1 if self.reduction in ("sum", "none") else max(1, self._examples(y_true, losses))
        return losses, weights, divisor, gradient

    def _weights(self, sample_weight: Any, losses: Array) -> Array:
        weights = np.asarray(sample_weight, losses.dtype)
        if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        elif 0 < weights.ndim == losses.ndim - 1:
            weights = weights[..., np.newaxis]
        try:
            fits = np.broadcast_shapes(weights.shape, losses.shape) == losses.shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(
                f"{type(self).__name__}: expected sample_weight to broadcast to the losses' shape "
                f"{losses.shape}, "
                f"found {np.shape(sample_weight)}."
            )
        return weights


class ElementMean(Loss):
    """A loss that is the mean over the last axis of something computed element by element."""

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        elements, derivative = self._elements(y_true, y_pred)
        if y_pred.shape[-1] == 1:
            return elements[..., 0], derivative

        def gradient() -> Array:
            result = derivative()
            result *= 1.0 / y_pred.shape[-1]
            return result

        return elements.mean(axis=-1), gradient

    def _elements(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        """Return each element's loss, and a function that returns each one's derivative as a new array."""
        raise NotImplementedError
