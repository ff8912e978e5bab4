"""The base of all losses: per-example losses, weights, a reduction, and the gradient by the predictions.

A rule computes the losses of single examples and a function that gives their gradients when asked; weights
and reduction are the same for all (tf.keras.losses of TensorFlow 2.15). A class of a program's own has a
`call`, whose gradient is autograd's (`dtrain.learning.losses.called`). `compute_average_loss` is one
replica's share of the mean of a global batch.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.core.configuration import Configurable
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.recording import is_recorded
from dtrain.learning.functions.tensors import plain
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
    """Base of all losses; one of your own has ``call(self, y_true, y_pred)``, as in Keras.

    `call` returns one loss an example, with functions of dt or numpy; its gradient needs the extra
    ``dtrain[autograd]``.

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
        if self._call is not None:
            return result_of(
                _called().reduced(self, self._call, plain(y_true), plain(y_pred), plain(sample_weight))
            )
        if is_recorded(y_pred):
            return _called().recorded(self, y_true, y_pred, sample_weight)
        losses, weights, divisor, _ = self._weighted(y_true, y_pred, sample_weight)
        if weights is not None:
            losses = losses * weights
        found = losses if self.reduction == "none" else losses.dtype.type(losses.sum() / divisor)
        return result_of(found)

    def value_and_gradient(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[float, Array]:
        """Return the loss (summed, if the reduction is `none`) and its gradient, of `y_pred`'s shape."""
        if self._call is not None:
            value, gradient = _called().value_and_gradient(self, self._call, y_true, y_pred, sample_weight)
            return value, gradient
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

    @property
    def _call(self) -> Callable[..., Any] | None:
        """The `call` of a class of a program's own, ``(y_true, y_pred) -> losses``; None: there is none."""
        return getattr(self, "call", None)

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        """Return losses `[y_pred.shape[:-1]]` and a function that returns their gradients, a new array."""
        raise ProgramError(
            f"{type(self).__name__}: expected call(self, y_true, y_pred), which returns a loss for each "
            "example; found none"
        )

    def _targets(self, y_true: Array, y_pred: Array) -> Array:
        """Return targets as `_losses` wants them: here, of y_pred's shape and dtype."""
        return same_shape(type(self).__name__, y_true, y_pred).astype(y_pred.dtype, copy=False)

    def _examples(self, y_true: Array, losses: Array) -> int:
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
        weights = without_last_axis(np.asarray(sample_weight, losses.dtype), losses.ndim)
        if 0 < weights.ndim == losses.ndim - 1:
            weights = weights[..., np.newaxis]
        try:
            fits = np.broadcast_shapes(weights.shape, losses.shape) == losses.shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(
                f"{type(self).__name__}: expected sample_weight to broadcast to the losses' shape "
                f"{losses.shape}, found {np.shape(sample_weight)}."
            )
        return weights


def _called() -> Any:
    return import_module("dtrain.learning.losses.called")


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


def same_shape(name: object, y_true: Array, y_pred: Array) -> Array:
    """Return targets in the shape of the predictions, whose last axis of length 1 they may lack."""
    if y_true.ndim == y_pred.ndim - 1 and y_pred.shape[-1] == 1:
        y_true = y_true[..., np.newaxis]
    if y_true.shape != y_pred.shape:
        raise InputError(f"{name}: expected y_true of y_pred's shape {y_pred.shape}, found {y_true.shape}.")
    return y_true


LossFunction = Callable[[Any, Array], tuple[Any, Any]]


@dataclass
class FunctionLoss(Loss):
    """A loss of a function ``(y_true, y_pred) -> (losses, gradients)``, such as `Loss.of_each`.

    The losses have the shape `y_pred.shape[:-1]`; the gradient of each by its predictions has that of
    `y_pred`.
    """

    function: LossFunction | None = None

    def _losses(self, y_true: Array, y_pred: Array) -> tuple[Array, Gradient]:
        assert self.function is not None
        found = self.function(y_true, y_pred)
        name = getattr(self.function, "__name__", repr(self.function))
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(
                f"loss {name}: expected a pair (one loss an example, their gradients by the predictions), "
                f"found {type(found).__name__}; Loss.of_each of dt.losses returns such a pair"
            )
        losses, gradients = (np.asarray(each, y_pred.dtype) for each in found)
        if losses.shape != y_pred.shape[:-1] or gradients.shape != y_pred.shape:
            raise InputError(
                f"loss {name}: expected losses of shape {y_pred.shape[:-1]} and gradients of shape "
                f"{y_pred.shape}, found {losses.shape} and {gradients.shape}"
            )
        return losses, lambda: np.array(gradients)

    def _targets(self, y_true: Array, y_pred: Array) -> Array:
        return y_true


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None, replicas: int = 1
) -> Any:
    """Return the sum of the weighted losses over the global batch size; replicas' results add up to the mean.

    Args:
        per_example_loss: one loss an example, at least one axis.
        sample_weight: a weight for each example, with or without a last axis of length 1.
        global_batch_size: default: the number of losses here times `replicas`.
        replicas: how many replicas share the global batch.

    Returns: A scalar of the losses' dtype (float64 for whole numbers); 0 for a global batch size of 0.
    """
    losses = np.asarray(per_example_loss)
    if losses.ndim == 0:
        raise InputError(
            f"compute_average_loss: expected an array with one loss an example, found the number {losses}."
        )
    if losses.dtype.kind != "f":
        losses = losses.astype(np.float64)
    if global_batch_size is None:
        global_batch_size = len(losses) * replicas
    if not isinstance(global_batch_size, int | np.integer) or global_batch_size < 0:
        raise InputError(
            f"compute_average_loss: expected a whole global_batch_size >= 0, found {global_batch_size}."
        )
    if sample_weight is not None:
        weights = without_last_axis(np.asarray(sample_weight, losses.dtype), losses.ndim)
        if weights.shape not in ((), losses.shape):
            raise InputError(
                f"compute_average_loss: expected sample_weight of shape {losses.shape}, found "
                f"{weights.shape}."
            )
        losses = losses * weights
    return losses.dtype.type(losses.sum() / global_batch_size if global_batch_size else 0.0)


def scale_regularization_loss(regularization_loss: Any, replicas: int = 1) -> Any:
    """Return one replica's share of a penalty; the shares add up to it (tf.nn.scale_regularization_loss).

    Args:
        regularization_loss: the sum of the penalties.
        replicas: how many replicas share it.
    """
    return np.asarray(regularization_loss) / replicas
