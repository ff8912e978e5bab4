"""One training step of a model whose variables lie on servers, in a program with a coordinator."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dtrain.errors import NonFiniteGradientError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums
from dtrain.parameters.finite import any_non_finite
from dtrain.protocol.outcome import Outcome
from dtrain.strategies.interface import Replica
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled
from dtrain.training.evaluation import Totals
from dtrain.training.parts import Batch
from dtrain.training.steps import TrainingStep, chance_of
from dtrain.types import Array


class SharedReplica(Replica):
    """The memory of one step: the newest weights, and room for gradients; see `Replica`."""

    def __init__(self, model: Architecture, weights: Mapping[str, Array]) -> None:
        self.rank = 0
        self.weights = weights
        specs = model.created_variables
        self.gradients = {
            spec.name: np.zeros(spec.shape, spec.dtype)
            for spec in specs
            if spec.trainable and not spec.sparse
        }
        self.rows: dict[str, SparseRows] = {}
        self.updates = {spec.name: np.array(weights[spec.name]) for spec in specs if not spec.trainable}

    def next_batch(self) -> int:
        """Return 0: there is one step."""
        return 0

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Refuse: `train_shared` hands the gradients in."""
        raise AssertionError("a step of a program with a coordinator is handed in by train_shared")


def train_shared(
    model: Any, compiled: Compiled, batch: Batch, class_weight: Mapping[int, float] | None = None
) -> dict[str, float]:
    """Train one step on one batch: gradients of the newest weights, applied on the servers at once.

    Args:
        model: a `Model`.
        compiled: its losses, metrics and optimizer.
        batch: of all the examples.
        class_weight: factors of the examples' weights, by class.

    Returns: Loss and metrics of the batch.

    Raises:
        NonFiniteGradientError: a gradient holds NaN or infinity; nothing is applied.
    """
    shared = model.strategy.shared
    assert shared is not None, "only a program with a coordinator trains so"
    batch = batch if class_weight is None else batch.weighted(class_weight)
    replica = SharedReplica(model, shared.weights(model))
    number = shared.iterations(compiled.optimizer)
    chance = partial(chance_of, model.strategy.context.seed, 0, 1, number)
    step = TrainingStep(model, compiled.losses, batch, replica, chance)
    logs = model.train_step(step)
    loss = step.contribute(logs)
    rows = [each.rows for each in replica.rows.values()]
    if any_non_finite([*replica.gradients.values(), *rows]):
        raise NonFiniteGradientError(
            f"{model.name}: the gradient of a batch of loss {loss} holds NaN or infinity; it was not applied"
        )
    gradients = {**replica.gradients, **replica.rows}
    shared.apply_gradients(compiled.optimizer, [(model, name, each) for name, each in gradients.items()])
    if replica.updates:
        shared.assign(model, replica.updates)
    totals = Totals(compiled)
    totals.add(batch, step, logs)
    return totals.results()
