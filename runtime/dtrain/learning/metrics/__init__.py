"""Metrics, as `metrics.get("accuracy")`: `update_state`, `result`, `reset_state`, `merge_state`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data
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
from dtrain.learning.metrics.metric import Mean, MeanOfFunction, Metric, Sum

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
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
    "get",
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
    if isinstance(identifier, str):
        identifier = {"class_name": identifier, "config": {"name": identifier}}
    if callable(identifier) and not isinstance(identifier, Metric | Mapping):
        return MeanOfFunction(function=identifier)
    return from_data(identifier, "metric", BY_NAME, custom_objects)
