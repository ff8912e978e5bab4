"""Metrics, as `metrics.get("accuracy")`: `update_state`, `result`, `reset_state`, `merge_state`.

Functions by Keras's names, as `metrics.mae(y_true, y_pred)`, return one number for each example.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.core.results import result_of
from dtrain.learning.losses import FUNCTIONS, Loss
from dtrain.learning.losses import NAMES as LOSS_NAMES
from dtrain.learning.metrics.accuracy import Accuracy as Accuracy
from dtrain.learning.metrics.accuracy import AccuracyByShape
from dtrain.learning.metrics.accuracy import BinaryAccuracy as BinaryAccuracy
from dtrain.learning.metrics.accuracy import CategoricalAccuracy as CategoricalAccuracy
from dtrain.learning.metrics.accuracy import SparseCategoricalAccuracy as SparseCategoricalAccuracy
from dtrain.learning.metrics.accuracy import SparseTopKCategoricalAccuracy as SparseTopKCategoricalAccuracy
from dtrain.learning.metrics.accuracy import TopKCategoricalAccuracy as TopKCategoricalAccuracy
from dtrain.learning.metrics.confusion import AUC as AUC
from dtrain.learning.metrics.confusion import FalseNegatives as FalseNegatives
from dtrain.learning.metrics.confusion import FalsePositives as FalsePositives
from dtrain.learning.metrics.confusion import MeanIoU as MeanIoU
from dtrain.learning.metrics.confusion import Precision as Precision
from dtrain.learning.metrics.confusion import PrecisionAtRecall as PrecisionAtRecall
from dtrain.learning.metrics.confusion import Recall as Recall
from dtrain.learning.metrics.confusion import RecallAtPrecision as RecallAtPrecision
from dtrain.learning.metrics.confusion import SensitivityAtSpecificity as SensitivityAtSpecificity
from dtrain.learning.metrics.confusion import SpecificityAtSensitivity as SpecificityAtSensitivity
from dtrain.learning.metrics.confusion import TrueNegatives as TrueNegatives
from dtrain.learning.metrics.confusion import TruePositives as TruePositives
from dtrain.learning.metrics.from_losses import BinaryCrossentropy as BinaryCrossentropy
from dtrain.learning.metrics.from_losses import CategoricalCrossentropy as CategoricalCrossentropy
from dtrain.learning.metrics.from_losses import CategoricalHinge as CategoricalHinge
from dtrain.learning.metrics.from_losses import CosineSimilarity as CosineSimilarity
from dtrain.learning.metrics.from_losses import Hinge as Hinge
from dtrain.learning.metrics.from_losses import KLDivergence as KLDivergence
from dtrain.learning.metrics.from_losses import LogCoshError as LogCoshError
from dtrain.learning.metrics.from_losses import MeanAbsoluteError as MeanAbsoluteError
from dtrain.learning.metrics.from_losses import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from dtrain.learning.metrics.from_losses import MeanSquaredError as MeanSquaredError
from dtrain.learning.metrics.from_losses import MeanSquaredLogarithmicError as MeanSquaredLogarithmicError
from dtrain.learning.metrics.from_losses import Poisson as Poisson
from dtrain.learning.metrics.from_losses import RootMeanSquaredError as RootMeanSquaredError
from dtrain.learning.metrics.from_losses import SparseCategoricalCrossentropy as SparseCategoricalCrossentropy
from dtrain.learning.metrics.from_losses import SquaredHinge as SquaredHinge
from dtrain.learning.metrics.metric import Mean as Mean
from dtrain.learning.metrics.metric import MeanOfExamples, MeanOfFunction
from dtrain.learning.metrics.metric import Metric as Metric
from dtrain.learning.metrics.metric import Sum as Sum

_CLASSES: list[type[Metric]] = [
    each
    for each in globals().values()
    if isinstance(each, type) and issubclass(each, Metric) and each not in (MeanOfExamples, MeanOfFunction)
]
__all__ = [
    *sorted(each.__name__ for each in _CLASSES if each is not AccuracyByShape),
    *("deserialize", "get", "serialize"),
]

Function: TypeAlias = Callable[[Any, Any], Any]

SHORT_NAMES: dict[str, type[Metric]] = {
    "accuracy": AccuracyByShape,
    "acc": AccuracyByShape,
    "log_cosh": LogCoshError,
    **{name: each for each in _CLASSES for name in LOSS_NAMES.get(vars(each).get("measured", Loss), ())},
}
BY_NAME: dict[str, type[Metric]] = {
    name: metric
    for metric in sorted(_CLASSES, key=lambda each: each.__name__.lower())
    if metric is not Metric
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
    if callable(given) and not isinstance(given, Metric | Mapping | type):
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
