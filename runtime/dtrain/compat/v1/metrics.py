"""`dt.compat.v1.metrics`: which metric belongs to which symbol of a `model_fn`; see `tf.compat.v1.metrics`.

They are values of `eval_metric_ops` of an `EstimatorSpec`.
"""

from collections.abc import Callable
from typing import Any

from dtrain.absent_names import absent_from
from dtrain.compat.model_fn import NotedMetric
from dtrain.learning import metrics

__all__ = [
    *("accuracy", "auc", "mean_absolute_error", "mean_squared_error", "precision", "recall"),
    "root_mean_squared_error",
]


def _noting(kind: Any) -> Callable[..., NotedMetric]:
    def note(labels: Any, predictions: Any, **named: Any) -> NotedMetric:
        return NotedMetric(kind(**named), labels, predictions)

    note.__doc__ = f"""Return a `dt.metrics.{kind.__name__}` of two symbols.

    Args:
        labels: the symbol of the true values.
        predictions: the symbol that is compared with them.
        named: arguments of that metric.
    """
    return note


accuracy = _noting(metrics.Accuracy)
auc = _noting(metrics.AUC)
mean_absolute_error = _noting(metrics.MeanAbsoluteError)
mean_squared_error = _noting(metrics.MeanSquaredError)
precision = _noting(metrics.Precision)
recall = _noting(metrics.Recall)
root_mean_squared_error = _noting(metrics.RootMeanSquaredError)

__getattr__ = absent_from("dtrain.compat.v1.metrics", __all__)
