"""Passes over data with fixed weights: evaluate and predict."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning import metrics
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Mean, Metric
from dtrain.learning.networks import Network
from dtrain.learning.optimizers import Optimizer
from dtrain.strategy import Weights
from dtrain.training.batches import Batch, Batches


@dataclass(frozen=True)
class Validation:
    """What is evaluated beside training.

    Attributes:
        steps: batches of one evaluation; None: all there are.
    """

    batches: Batches
    steps: int | None = None

    def once(self) -> Iterator[Batch]:
        """The batches of one evaluation."""
        return self.batches.once(self.steps)


@dataclass(frozen=True)
class Compiled:
    """What `compile` was told."""

    optimizer: Optimizer
    loss: Loss
    metrics: tuple[Metric, ...] = ()

    def fresh_metrics(self) -> list[Metric]:
        """Metrics of one's own, in their first state: never shared between loops."""
        return [metrics.get(metric.get_config()) for metric in self.metrics]

    def evaluate(self, network: Network, weights: Weights, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss and metrics over all batches: means over examples.

        Raises:
            InputError: there is no batch.
        """
        mean_loss, seen, fresh = Mean(name="loss"), 0, self.fresh_metrics()
        penalty = network.regularization_loss(weights)
        for batch in batches:
            outputs = network.predict(weights, batch.x)
            value = float(np.mean(self.loss(batch.y, outputs, batch.sample_weight)))
            mean_loss.update_state(value + penalty, sample_weight=batch.size)
            for metric in fresh:
                metric.update_state(batch.y, outputs)
            seen += batch.size
        if not seen:
            raise InputError("evaluate: expected at least one batch, found an empty dataset")
        return {"loss": float(mean_loss.result()), **{str(metric.name): float(metric.result()) for metric in fresh}}


def predict(network: Network, weights: Weights, batches: Iterable[Batch]) -> Any:
    """The outputs of all batches, one after the other in one array (a list of arrays for several outputs)."""
    outputs = [network.predict(weights, batch.x) for batch in batches]
    if not outputs:
        raise InputError("predict: expected at least one batch, found an empty dataset")
    if isinstance(outputs[0], list):
        return [np.concatenate(each) for each in zip(*outputs, strict=True)]
    return np.concatenate(outputs)
