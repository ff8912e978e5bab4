"""Losses, as `losses.get("mse")`, with `loss(y_true, y_pred)` and `value_and_gradient`."""

from collections.abc import Mapping
from typing import Any

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data
from dtrain.learning.losses.crossentropy import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    SparseCategoricalCrossentropy,
)
from dtrain.learning.losses.loss import (
    ElementMean,
    Loss,
    Reduction,
    compute_average_loss,
    scale_regularization_loss,
)
from dtrain.learning.losses.regression import (
    CosineSimilarity,
    Hinge,
    Huber,
    KLDivergence,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
    SquaredHinge,
)

__all__ = [
    "BinaryCrossentropy",
    "CategoricalCrossentropy",
    "CosineSimilarity",
    "ElementMean",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "Reduction",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "compute_average_loss",
    "get",
    "scale_regularization_loss",
]


NAMES: dict[type[Loss], tuple[str, ...]] = {
    BinaryCrossentropy: ("binary_crossentropy", "bce", "BCE"),
    CategoricalCrossentropy: ("categorical_crossentropy",),
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
BY_NAME: dict[str, type[Loss]] = {
    name: loss for loss, names in NAMES.items() for name in (loss.__name__, *names)
}


def get(identifier: str | Mapping[str, Any] | Loss, custom_objects: CustomObjects = NO_OBJECTS) -> Loss:
    """Return a loss by Keras's name, from data, or itself; raise a `SpecError` if it is none.

    Args:
        identifier: a name such as ``mse``, ``{"class_name", "config"}``, or a `Loss`.
        custom_objects: classes of your own by the names that data mention.
    """
    if callable(identifier) and not isinstance(identifier, Loss):
        raise SpecError(
            f"loss: {identifier!r} has no gradient; expected a name or a Loss, for example a class derived "
            "from Loss."
        )
    return from_data(identifier, "loss", BY_NAME, custom_objects)
