"""A model's outputs with their losses, and the targets and weights of examples of each."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.activations import Activation
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers import Layer
from dtrain.learning.losses import Loss
from dtrain.types import Array


class LossScale(NamedTuple):
    """Factors for a part of a batch, so that the mean over the parts is the gradient of the batch.

    Attributes:
        sums: factor of losses whose reduction is ``sum`` or ``none``: nothing divides a sum over parts.
        penalties: factor of the gradients of regularizers, which parts without examples leave to the others.
        activities: factor of penalties on the outputs of layers, which each part has for itself.
    """

    sums: float = 1.0
    penalties: float = 1.0
    activities: float = 1.0


WHOLE = LossScale()
"""A batch that is not cut."""


class OutputLoss(NamedTuple):
    """The loss of one output, and its factor in the model's loss, which is the sum of all."""

    loss: Loss
    weight: float = 1.0


Losses: TypeAlias = Loss | Sequence[Loss | OutputLoss | None]
"""One loss for all outputs, or one for each; None for an output that is not trained."""


class Head(NamedTuple):
    """An output and its loss, computed from the input of the last activation function where possible.

    So a softmax or sigmoid whose result is rounded to 0 or 1 still has a gradient, as in Keras's `fit`.

    Attributes:
        label: of the output's layer, for errors.
        stand_in: the layer without its activation function; None where the loss reads the layer's output.
        activation: the function that `stand_in` leaves out.
    """

    label: str
    loss: Loss | None
    weight: float = 1.0
    stand_in: Layer | None = None
    activation: Activation | None = None

    def value_and_gradient(
        self, target: Any, value: Array, sample_weight: Any, scale: LossScale = WHOLE
    ) -> tuple[float, Array | None]:
        """Return the loss, and the gradient by `value` of the weighted loss.

        With the reduction ``none`` the gradient is that of the sum, and the loss is the mean, as in `fit` of
        Keras.
        """
        if self.loss is None:
            return 0.0, None
        try:
            lost, gradient = self.loss.value_and_gradient(target, value, sample_weight)
        except InputError as error:
            raise InputError(f"{self.label}: {error}") from None
        factor = 1.0 if self.loss.is_mean else scale.sums
        if self.weight * factor != 1.0:
            gradient = gradient * (self.weight * factor)
        reported = (
            factor if self.loss.reduction != "none" else 1.0 / max(1, prod(value.shape[:-1] or value.shape))
        )
        return lost * reported, as_float32(gradient, self.label)

    def value(self, target: Any, value: Array, sample_weight: Any) -> float:
        if self.loss is None:
            return 0.0
        try:
            return float(np.mean(self.loss(target, value, sample_weight)))
        except InputError as error:
            raise InputError(f"{self.label}: {error}") from None

    def output(self, value: Array) -> Array:
        return np.array(value) if self.activation is None else self.activation.forward(np.array(value))


def masked(sample_weight: Any, mask: Array, is_mean: bool) -> Array:
    """Return weights of examples that are 0 where the output has nothing.

    For a mean over examples those that are there count as all, as in `apply_valid_mask` of Keras 2.15.
    """
    weights = mask.astype(np.float32)
    if is_mean:
        weights *= mask.size / max(1, int(mask.sum()))
    if sample_weight is None:
        return weights
    given = np.asarray(sample_weight, np.float32)
    if given.ndim > weights.ndim and given.shape[-1] == 1:
        given = given[..., 0]
    return weights * given.reshape(*given.shape, *[1] * (weights.ndim - given.ndim))


def by_output(given: Any, names: Sequence[str], what: str) -> list[Any]:
    """Return what is given for each of a model's outputs, None where nothing is.

    Args:
        given: one thing for all outputs; a list with one for each; or a dict by name, which may lack some.
        what: the noun for `given` in the message of the `InputError` for a wrong number or name.
    """
    if given is None or isinstance(given, np.ndarray):
        return [given] * len(names)
    if isinstance(given, Mapping) and (len(names) > 1 or set(given) == set(names)):
        if unknown := [name for name in given if name not in names]:
            raise InputError(
                f"expected {what} for the outputs {', '.join(names)}; found {', '.join(map(str, unknown))}"
            )
        return [given.get(name) for name in names]
    if isinstance(given, list | tuple) and (len(names) > 1 or len(given) == 1):
        if len(given) != len(names):
            raise InputError(
                f"expected {what} for {len(names)} outputs ({', '.join(names)}), found {len(given)}"
            )
        return list(given)
    return [given] * len(names)
