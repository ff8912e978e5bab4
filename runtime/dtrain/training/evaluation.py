"""The evaluation loop: a pass over data with fixed weights."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Mean, Metric
from dtrain.learning.networks import Network
from dtrain.strategy import Weights
from dtrain.training.batches import Batch


def evaluate(
    network: Network, weights: Weights, batches: Iterable[Batch], loss: Loss, metrics: Sequence[Metric]
) -> dict[str, float]:
    """Loss and metrics over all batches: means over examples.

    Raises:
        InputError: there is no batch.
    """
    mean_loss, seen = Mean(name="loss"), 0
    for metric in metrics:
        metric.reset_state()
    penalty = network.regularization_loss(weights)
    for batch in batches:
        outputs = network.predict(weights, batch.x)
        value = float(np.mean(loss(batch.y, outputs, batch.sample_weight)))
        mean_loss.update_state(value + penalty, sample_weight=batch.size)
        for metric in metrics:
            metric.update_state(batch.y, outputs)
        seen += batch.size
    if not seen:
        raise InputError("evaluate: expected at least one batch, found an empty dataset")
    return {"loss": float(mean_loss.result()), **{str(metric.name): float(metric.result()) for metric in metrics}}


def predict(network: Network, weights: Weights, batches: Iterable[Batch]) -> Any:
    """The outputs of all batches, one after the other in one array (a list of arrays for several outputs)."""
    outputs = [network.predict(weights, batch.x) for batch in batches]
    if not outputs:
        raise InputError("predict: expected at least one batch, found an empty dataset")
    if isinstance(outputs[0], list):
        return [np.concatenate(each) for each in zip(*outputs, strict=True)]
    return np.concatenate(outputs)
