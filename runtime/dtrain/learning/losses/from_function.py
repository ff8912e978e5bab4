"""A loss that a function computes, with its derivative: there is no automatic differentiation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.losses.loss import Gradient, Loss
from dtrain.types import Array

LossFunction = Callable[[Any, Array], tuple[Any, Any]]


@dataclass
class FunctionLoss(Loss):
    """A loss of a function ``(y_true, y_pred) -> (losses, gradients)``.

    Attributes:
        function: returns one loss for each example, shape `y_pred.shape[:-1]`, and the gradient of each by
            its predictions, shape `y_pred.shape`. `Loss.of_each` returns such a pair.
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
