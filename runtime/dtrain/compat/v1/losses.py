"""`dt.compat.v1.losses`: which loss belongs to which symbol of a `model_fn`; see `tf.compat.v1.losses`.

Each is a mean over the batch. Losses may be added, and multiplied by numbers.
"""

from collections.abc import Callable
from typing import Any

from dtrain.absent_names import absent_from
from dtrain.compat.model_fn import NotedLoss
from dtrain.errors import InputError
from dtrain.learning import losses

__all__ = [
    *("absolute_difference", "hinge_loss", "huber_loss", "log_loss", "mean_squared_error"),
    *("sigmoid_cross_entropy", "softmax_cross_entropy", "sparse_softmax_cross_entropy"),
]


def _noting(
    kind: Any, labels: str = "labels", predictions: str = "logits", **fixed: Any
) -> Callable[..., Any]:
    def note(*symbols: Any, weights: float = 1.0, **named: Any) -> NotedLoss:
        names = (labels, predictions)[len(symbols) :]
        if absent := [name for name in names if name not in named]:
            raise InputError(f"tf1.losses: {kind.__name__}: expected {absent[0]}, found no such argument")
        if not isinstance(weights, int | float):
            raise InputError(
                f"tf1.losses: weights: expected a number, found {type(weights).__name__}; weights of "
                "examples are a third item of the dataset's elements"
            )
        ends = (*symbols, *[named.pop(name) for name in names])
        return NotedLoss(((kind(**fixed, **named), float(weights), ends[0], ends[1]),))

    note.__doc__ = f"""Return the loss `dt.losses.{kind.__name__}` of `{labels}` and `{predictions}`.

    Args:
        symbols: these two, in this order or by their names.
        weights: a number by which the loss is multiplied.
        named: further arguments of that loss, such as `label_smoothing` or `delta`.

    Raises:
        InputError: a symbol is missing, or weights are no number.
    """
    return note


absolute_difference = _noting(losses.MeanAbsoluteError, predictions="predictions")
hinge_loss = _noting(losses.Hinge)
huber_loss = _noting(losses.Huber, predictions="predictions")
log_loss = _noting(losses.BinaryCrossentropy, predictions="predictions")
mean_squared_error = _noting(losses.MeanSquaredError, predictions="predictions")
sigmoid_cross_entropy = _noting(losses.BinaryCrossentropy, "multi_class_labels", from_logits=True)
softmax_cross_entropy = _noting(losses.CategoricalCrossentropy, "onehot_labels", from_logits=True)
sparse_softmax_cross_entropy = _noting(losses.SparseCategoricalCrossentropy, from_logits=True)

__getattr__ = absent_from("dtrain.compat.v1.losses", __all__)
