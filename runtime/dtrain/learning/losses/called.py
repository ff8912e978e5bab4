"""Losses that a program writes with functions of dt or numpy: functions, and classes with a `call`.

Their gradient is autograd's (the extra ``dtrain[autograd]``). Targets arrive as Keras's `compile` hands them
on: with a last axis if predictions have two axes and they one, and floats in the dtype of the predictions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import ProgramError, SpecError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.functions.recording import RecordedTensor, Recording, bare, compute
from dtrain.learning.losses.loss import Loss
from dtrain.types import Array


def reduced(loss: Loss, call: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the weighted and reduced loss of predictions, which may be recorded.

    Source: `compute_weighted_loss` of Keras 2.15 (`keras/src/utils/losses_utils.py`).
    """
    lost = call(_targets(y_true, y_pred), y_pred)
    if lost is None:
        raise ProgramError(f"{loss.name or 'loss'}: expected a loss for each example, found None; return it")
    if sample_weight is not None:
        weights = without_last_axis(np.asarray(sample_weight, np.float32), np.ndim(bare(lost)))
        while 0 < weights.ndim < np.ndim(bare(lost)):
            weights = weights[..., np.newaxis]
        lost = lost * weights
    if loss.reduction == "none":
        return lost
    total = np.sum(lost)
    return total / max(1, np.size(bare(lost))) if loss.is_mean else total


def value_and_gradient(
    loss: Loss, call: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[float, Array]:
    """Return the loss (summed, if nothing reduces it) and its gradient by the predictions."""
    recording = Recording()
    y_pred = np.asarray(y_pred)
    lost = reduced(
        loss,
        call,
        y_true,
        recording.watch(y_pred if y_pred.dtype.kind == "f" else y_pred * 1.0),
        sample_weight,
    )
    [gradient] = recording.gradients(lost)
    value = float(np.sum(bare(lost)))
    return value, np.zeros_like(y_pred) if gradient is None else np.array(gradient, y_pred.dtype)


def _targets(y_true: Any, y_pred: Any) -> Any:
    if y_true is None or isinstance(y_true, RecordedTensor):
        return y_true
    y_true = np.asarray(y_true)
    if y_true.ndim == 1 and len(y_pred.shape) == 2:
        y_true = y_true[:, np.newaxis]
    return y_true.astype(y_pred.dtype, copy=False) if y_true.dtype.kind == "f" else y_true


def recorded(loss: Loss, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return a loss with a rule of ours as one node of a recording: a function of the predictions."""
    y_true, weight = bare(y_true), bare(sample_weight)

    def backward(gradient: Any, predicted: Array) -> list[Array]:
        if loss.reduction != "none":
            return [loss.value_and_gradient(y_true, predicted, weight)[1] * gradient]
        factors = np.asarray(gradient)
        if weight is not None:
            factors = factors * without_last_axis(np.asarray(weight, factors.dtype), factors.ndim)
        return [loss.value_and_gradient(y_true, predicted, factors)[1]]

    return compute(type(loss).__name__, lambda predicted: loss(y_true, predicted, weight), backward, y_pred)


@dataclass
class CalledLoss(Loss):
    """A function ``(y_true, y_pred) -> losses``, such as a program gives to `compile`.

    The losses have one number an example, or are one number for all. The function is no data: a file names
    it, and `dt.load_model` finds it among `custom_objects`.
    """

    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise SpecError(
                f"loss {self.function!r}: expected the function; give it to dt.load_model as "
                f"custom_objects={{{self.function!r}: ...}}"
            )

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return what the function returns; of a pair with gradients the losses alone."""
        assert self.function is not None
        return self.function(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as JSON types, the function by its name."""
        name = getattr(self.function, "__name__", "<lambda>")
        if name == "<lambda>":
            raise SpecError("loss: a function without a name cannot be saved; write it with def")
        return {"reduction": self.reduction, "name": self.name, "function": name}
