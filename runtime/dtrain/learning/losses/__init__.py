"""Losses, as `losses.get("mse")`, with `loss(y_true, y_pred)` and `value_and_gradient`.

Functions by Keras's names, as `losses.mse(y_true, y_pred)`, return one number for each example; they take
the arguments of their classes.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.functions.tensors import tensor
from dtrain.learning.losses.crossentropy import BinaryCrossentropy as BinaryCrossentropy
from dtrain.learning.losses.crossentropy import BinaryFocalCrossentropy as BinaryFocalCrossentropy
from dtrain.learning.losses.crossentropy import CategoricalCrossentropy as CategoricalCrossentropy
from dtrain.learning.losses.crossentropy import SparseCategoricalCrossentropy as SparseCategoricalCrossentropy
from dtrain.learning.losses.loss import ElementMean as ElementMean
from dtrain.learning.losses.loss import Loss as Loss
from dtrain.learning.losses.loss import Reduction as Reduction
from dtrain.learning.losses.loss import compute_average_loss as compute_average_loss
from dtrain.learning.losses.loss import scale_regularization_loss as scale_regularization_loss
from dtrain.learning.losses.regression import CategoricalHinge as CategoricalHinge
from dtrain.learning.losses.regression import CosineSimilarity as CosineSimilarity
from dtrain.learning.losses.regression import Hinge as Hinge
from dtrain.learning.losses.regression import Huber as Huber
from dtrain.learning.losses.regression import KLDivergence as KLDivergence
from dtrain.learning.losses.regression import LogCosh as LogCosh
from dtrain.learning.losses.regression import MeanAbsoluteError as MeanAbsoluteError
from dtrain.learning.losses.regression import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from dtrain.learning.losses.regression import MeanSquaredError as MeanSquaredError
from dtrain.learning.losses.regression import MeanSquaredLogarithmicError as MeanSquaredLogarithmicError
from dtrain.learning.losses.regression import Poisson as Poisson
from dtrain.learning.losses.regression import SquaredHinge as SquaredHinge

NAMES: dict[type[Loss], tuple[str, ...]] = {
    BinaryCrossentropy: ("binary_crossentropy", "bce", "BCE"),
    BinaryFocalCrossentropy: ("binary_focal_crossentropy",),
    CategoricalCrossentropy: ("categorical_crossentropy",),
    CategoricalHinge: ("categorical_hinge",),
    CosineSimilarity: ("cosine_similarity",),
    Hinge: ("hinge",),
    Huber: ("huber", "huber_loss"),
    KLDivergence: ("kl_divergence", "kullback_leibler_divergence", "kld", "KLD"),
    LogCosh: ("log_cosh", "logcosh"),
    MeanAbsoluteError: ("mean_absolute_error", "mae", "MAE"),
    MeanAbsolutePercentageError: ("mean_absolute_percentage_error", "mape", "MAPE"),
    MeanSquaredError: ("mean_squared_error", "mse", "MSE"),
    MeanSquaredLogarithmicError: ("mean_squared_logarithmic_error", "msle", "MSLE"),
    Poisson: ("poisson",),
    SparseCategoricalCrossentropy: ("sparse_categorical_crossentropy",),
    SquaredHinge: ("squared_hinge",),
}
__all__ = [
    *sorted(loss.__name__ for loss in (*NAMES, ElementMean, Loss, Reduction)),
    *("compute_average_loss", "deserialize", "get", "scale_regularization_loss", "serialize"),
]
BY_NAME: dict[str, type[Loss]] = {
    name: loss for loss, names in NAMES.items() for name in (loss.__name__, *names)
}


def get(
    identifier: str | Mapping[str, Any] | Loss | Callable[..., Any],
    custom_objects: CustomObjects = NO_OBJECTS,
) -> Loss:
    """Return a loss by Keras's name, from data, or itself; raise a `SpecError` if it is none.

    Args:
        identifier: a name such as ``mse``, ``{"class_name", "config"}``, a `Loss`, or a function
            ``(y_true, y_pred) -> losses``, whose gradient needs the extra ``dtrain[autograd]``.
        custom_objects: classes of your own by the names that data mention.
    """
    given: Any = custom_objects.get(identifier, identifier) if isinstance(identifier, str) else identifier
    given = getattr(given, "keras_name", given)
    known: dict[str, type[Loss]] = BY_NAME
    named = isinstance(given, Mapping) and given.get("class_name") == "CalledLoss"
    if named or (callable(given) and not isinstance(given, Loss | type)):
        called: type[Loss] = import_module("dtrain.learning.losses.called").CalledLoss
        if not named:
            return called(function=given)  # type: ignore[call-arg]
        known = {**BY_NAME, "CalledLoss": called}
    found: Loss = from_data(given, "loss", known, custom_objects)
    return found


deserialize = get
serialize = to_data


def _function(loss: type[Loss], names: tuple[str, ...]) -> Callable[..., Any]:
    def of_examples(y_true: Any, y_pred: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("axis") == -1:
            del named["axis"]
        of_each = loss(*arguments, reduction="none", **named)
        if np.ndim(y_pred) == 1:  # one vector, of which Keras makes one number
            return of_each(np.asarray(y_true)[np.newaxis], tensor(y_pred)[np.newaxis])[0]
        return of_each(y_true, y_pred)

    of_examples.__name__ = of_examples.__qualname__ = names[0]
    of_examples.__doc__ = f"""Return `{loss.__name__}` of `y_true` and `y_pred` along the last axis.

    Args:
        arguments, named: of the class.
    """
    of_examples.keras_name = names[0]  # type: ignore[attr-defined]
    return of_examples


FUNCTIONS = {
    name: function for loss, names in NAMES.items() for function in [_function(loss, names)] for name in names
}
"""The losses as functions, by Keras's names; `compile` takes them as it takes the names."""
globals().update(FUNCTIONS)
