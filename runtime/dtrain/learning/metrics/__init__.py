"""Metrics: `metrics.Mean()`, `metrics.get("accuracy")`; each has `update_state`, `result`, `reset_state`, `merge_state`."""

from collections.abc import Mapping
from typing import Any

from dtrain.learning.described import from_description
from dtrain.learning.metrics.accuracy import (
    Accuracy,
    AccuracyByShape,
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from dtrain.learning.metrics.metric import Mean, Metric, Sum

__all__ = [
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "Mean",
    "Metric",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "Sum",
    "TopKCategoricalAccuracy",
    "get",
]

METRICS: tuple[type[Metric], ...] = (
    Accuracy,
    BinaryAccuracy,
    CategoricalAccuracy,
    Mean,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    Sum,
    TopKCategoricalAccuracy,
)
BY_NAME: dict[str, type[Metric]] = {
    **{name: metric for metric in METRICS for name in (metric.__name__, metric.default_name)},
    "accuracy": AccuracyByShape,
    "acc": AccuracyByShape,
    "AccuracyByShape": AccuracyByShape,
}


def get(identifier: str | Mapping[str, Any] | Metric) -> Metric:
    """A metric from one of its Keras names, from its config, or itself.

    "accuracy" is the binary, sparse categorical or categorical accuracy, as the shapes of each batch say. A metric that is asked
    for by name reports under that name.

    Raises:
        SpecError: there is no metric of that name, or its arguments are wrong.
    """
    if isinstance(identifier, str):
        identifier = {"class_name": identifier, "config": {"name": identifier}}
    return from_description(identifier, "metrics", BY_NAME)
