"""Metrics, as `metrics.get("accuracy")`: `update_state`, `result`, `reset_state`, `merge_state`.

Functions by Keras's names, as `metrics.mae(y_true, y_pred)`, return one number for each example.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.core.results import result_of
from dtrain.learning.losses import FUNCTIONS
from dtrain.learning.metrics.accuracy import (
    Accuracy,
    AccuracyByShape,
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from dtrain.learning.metrics.confusion import (
    AUC,
    FalseNegatives,
    FalsePositives,
    MeanIoU,
    Precision,
    PrecisionAtRecall,
    Recall,
    RecallAtPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
    TrueNegatives,
    TruePositives,
)
from dtrain.learning.metrics.from_losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    CategoricalHinge,
    CosineSimilarity,
    Hinge,
    KLDivergence,
    LogCoshError,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
    RootMeanSquaredError,
    SparseCategoricalCrossentropy,
    SquaredHinge,
)
from dtrain.learning.metrics.metric import Mean, MeanOfExamples, MeanOfFunction, Metric, Sum

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "FalseNegatives",
    "FalsePositives",
    "Hinge",
    "KLDivergence",
    "LogCoshError",
    "Mean",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanIoU",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Metric",
    "Poisson",
    "Precision",
    "PrecisionAtRecall",
    "Recall",
    "RecallAtPrecision",
    "RootMeanSquaredError",
    "SensitivityAtSpecificity",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
    "SpecificityAtSensitivity",
    "SquaredHinge",
    "Sum",
    "TopKCategoricalAccuracy",
    "TrueNegatives",
    "TruePositives",
    "deserialize",
    "get",
    "serialize",
]


Function: TypeAlias = Callable[[Any, Any], Any]

SHORT_NAMES: dict[str, type[Metric]] = {
    "accuracy": AccuracyByShape,
    "acc": AccuracyByShape,
    "mse": MeanSquaredError,
    "MSE": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "MAE": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
    "MAPE": MeanAbsolutePercentageError,
    "msle": MeanSquaredLogarithmicError,
    "MSLE": MeanSquaredLogarithmicError,
    "bce": BinaryCrossentropy,
    "BCE": BinaryCrossentropy,
    "kld": KLDivergence,
    "KLD": KLDivergence,
    "log_cosh": LogCoshError,
}
BY_NAME: dict[str, type[Metric]] = {
    name: metric
    for metric in map(globals().get, sorted([*__all__, "AccuracyByShape"], key=str.lower))
    if isinstance(metric, type) and issubclass(metric, Metric) and metric is not Metric
    for name in (metric.__name__, metric.default_name)
} | SHORT_NAMES


def get(
    identifier: str | Mapping[str, Any] | Metric | Function, custom_objects: CustomObjects = NO_OBJECTS
) -> Metric:
    """Return a metric from a Keras name, from data, from a function of targets and predictions, or itself.

    "accuracy" is the binary, sparse categorical or categorical accuracy, by the shapes of each batch. A
    metric that is asked for by name reports under that name.

    Args:
        identifier: a name such as ``mae``, ``{"class_name", "config"}``, a function of (y_true, y_pred), or a
            `Metric`.
        custom_objects: classes of your own by the names that data mention.

    Raises:
        SpecError: no metric has that name, or its arguments are wrong.
    """
    given: Any = getattr(identifier, "keras_name", identifier)
    if isinstance(given, str):
        given = {"class_name": given, "config": {"name": given}}
    if callable(given) and not isinstance(given, Metric | Mapping):
        return MeanOfFunction(function=given)
    found: Metric = from_data(given, "metric", BY_NAME, custom_objects)
    return found


deserialize = get
serialize = to_data

_NO_FUNCTIONS = ("bce", "BCE", "huber", "huber_loss", "cosine_similarity", "categorical_hinge")
_ACCURACIES = (
    *(BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy),
    *(TopKCategoricalAccuracy, SparseTopKCategoricalAccuracy),
)


def _function(metric: type[MeanOfExamples]) -> Function:
    def of_examples(y_true: Any, y_pred: Any, *arguments: Any, **named: Any) -> Any:
        return result_of(
            np.float32(metric(*arguments, **named)._examples(np.asarray(y_true), np.asarray(y_pred)))
        )

    of_examples.__name__ = of_examples.__qualname__ = metric.default_name
    of_examples.__doc__ = f"""Return `{metric.__name__}` of each example of `y_true` and `y_pred`.

    Args:
        arguments, named: of the class.
    """
    of_examples.keras_name = metric.default_name  # type: ignore[attr-defined]
    return of_examples


_FUNCTIONS = {name: each for name, each in FUNCTIONS.items() if name not in _NO_FUNCTIONS} | {
    metric.default_name: _function(metric) for metric in _ACCURACIES
}
globals().update(_FUNCTIONS)
