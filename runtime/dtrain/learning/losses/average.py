"""One replica's share of a mean, or of a penalty, of a global batch (tf.nn.compute_average_loss)."""

from typing import Any

import numpy as np

from dtrain.errors import InputError


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None, replicas: int = 1
) -> Any:
    """Return the sum of the weighted losses over the global batch size; replicas' results add up to the mean.

    Args:
        per_example_loss: one loss an example, at least one axis.
        sample_weight: a weight for each example, with or without a last axis of length 1.
        global_batch_size: default: the number of losses here times `replicas`.
        replicas: how many replicas share the global batch.

    Returns: A scalar of the losses' dtype (float64 for whole numbers); 0 for a global batch size of 0.
    """
    losses = np.asarray(per_example_loss)
    if losses.ndim == 0:
        raise InputError(
            f"compute_average_loss: expected an array with one loss an example, found the number {losses}."
        )
    if losses.dtype.kind != "f":
        losses = losses.astype(np.float64)
    if global_batch_size is None:
        global_batch_size = len(losses) * replicas
    if not isinstance(global_batch_size, int | np.integer) or global_batch_size < 0:
        raise InputError(
            f"compute_average_loss: expected a whole global_batch_size >= 0, found {global_batch_size}."
        )
    if sample_weight is not None:
        weights = np.asarray(sample_weight, losses.dtype)
        if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        if weights.shape not in ((), losses.shape):
            raise InputError(
                f"compute_average_loss: expected sample_weight of shape {losses.shape}, found "
                f"{weights.shape}."
            )
        losses = losses * weights
    return losses.dtype.type(losses.sum() / global_batch_size if global_batch_size else 0.0)


def scale_regularization_loss(regularization_loss: Any, replicas: int = 1) -> Any:
    """Return one replica's share of a penalty; the shares add up to it (tf.nn.scale_regularization_loss).

    Args:
        regularization_loss: the sum of the penalties.
        replicas: how many replicas share it.
    """
    return np.asarray(regularization_loss) / replicas
