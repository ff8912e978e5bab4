"""A model in loops of one's own: gradients in a replica, steps with a coordinator, an optimizer's state.

Gradients are what a tape gives in TensorFlow. In a program with a coordinator the variables lie on servers.
"""

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.errors import ContextError, InputError, NonFiniteGradientError
from dtrain.learning import losses
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.heads import LossScale, OutputLoss, by_output
from dtrain.learning.graphs.networks import Network, StepResult
from dtrain.learning.graphs.passes import Going, only
from dtrain.learning.layers.base import Chance, StepSums
from dtrain.learning.losses.loss import FunctionLoss, Loss
from dtrain.learning.optimizers import Optimizer
from dtrain.messages import Sums
from dtrain.parameters.replica_memory import any_non_finite
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.interface import Replica
from dtrain.strategies.replicas.applying import ReplicaApplication
from dtrain.strategies.replicas.contexts import ReplicaContext, here
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.strategies.replicas.variable import Variable
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled
from dtrain.training.parts import Batch
from dtrain.training.steps import Totals, TrainingStep, chance_of
from dtrain.types import Array, Arrays


class Prepared(NamedTuple):
    """The losses of a model's outputs as sums over examples; None for an output that is not trained.

    `given` is what they were made of, kept so that its identity stays its own. If it `averages`, the sum is
    to be divided by the number of examples where no batch size is given.
    """

    given: Any
    outputs: list[OutputLoss | None]
    averages: bool


def value_and_gradients(
    model: Architecture,
    prepared: Prepared,
    batch: Batch,
    global_batch_size: int | None,
    *,
    training: bool,
) -> tuple[Any, list[Array | SparseRows], Any]:
    """Return this replica's share of the loss, its gradients, and outputs; errors as `Model` says."""
    variables = model.in_replicas()
    variables.group.check("value_and_gradients")
    index = variables.index()
    replicas = variables.group.num_replicas_in_sync
    if index is None and replicas > 1:
        raise ContextError(
            f"{model.name}: value_and_gradients: expected to be in a replica, found the scope of a strategy "
            "with several; call it within a function of strategy.run"
        )
    network = model.network
    sums = sums_over_replicas() if training and replicas > 1 and network.sums_over_replicas else None
    divisor = global_batch_size
    if divisor is None:
        divisor = batch.size * replicas if prepared.averages else 1
    scale = LossScale(1.0 / divisor if divisor else 0.0, 1.0 / replicas, 1.0 / replicas)
    trained = [spec for spec in model.variable_specs if spec.trainable]
    tables = set(network.sparse_variables)
    places = {spec.name: np.empty(spec.shape, spec.dtype) for spec in trained if spec.name not in tables}
    weights = model.arrays
    if training:  # also of no examples: what other tasks have to be asked for is the same in all of them
        variables.diverge()
    rng = variables.rng(index or 0, model.strategy.seed)
    if batch.size:
        result = network.loss_and_gradients(
            weights,
            batch.x,
            batch.y,
            prepared.outputs,
            places,
            sample_weight=batch.sample_weight,
            rng=rng,
            scale=scale,
            training=training,
            sums=sums,
        )
        variables.take_state(index or 0, result.state_updates if training else {})
    else:
        result = _of_no_examples(network, weights, batch.x, places, scale, rng, sums)
    penalty = network.regularization_loss(weights)
    given: dict[str, Array | SparseRows] = {**places, **result.row_gradients}
    for spec in trained:
        if spec.name not in given:
            given[spec.name] = SparseRows(np.zeros(0, np.int64), np.zeros((0, *spec.shape[1:]), spec.dtype))
    gradients = [given[spec.name] for spec in trained]
    return np.float32(result.loss - penalty + penalty / replicas), gradients, result.outputs


def _of_no_examples(
    network: Network,
    weights: Arrays,
    x: Any,
    places: Arrays,
    scale: LossScale,
    rng: Chance,
    sums: StepSums | None,
) -> StepResult:
    """Fill the gradients of a batch without examples: zero, but for penalties."""
    penalty = network.regularization_loss(weights)
    if sums is None:
        network.penalty_gradients(weights, places, scale.penalties)
        return StepResult(penalty, {}, network.predict(weights, x))
    # Layers of the other replicas wait for this one's sums, which are zero.
    run = network.forward(weights, x, Going(True, rng, sums))
    outputs = only([np.array(output) for output in run.outputs])
    rows = run.backward([np.zeros_like(each) for each in run.outputs], places, scale.penalties)
    return StepResult(penalty, {}, outputs, row_gradients=rows)


def sums_over_replicas() -> StepSums:
    """Return the sums over all replicas, for layers that normalize over all of them."""
    context = here()
    assert isinstance(context, ReplicaContext)
    return StepSums(lambda array: np.asarray(context.all_reduce(ReduceOp.SUM, array)))


def prepared_losses(model: Architecture, given: Any) -> Prepared:
    """Return losses, as users or `compile` give them, by the model's outputs, as sums over examples."""
    names = model.network.output_names
    outputs = [_as_output(each) for each in by_output(given, names, "losses")]
    averages = all(each is None or each.loss.reduction != "sum" for each in outputs)
    return Prepared(
        given,
        [None if each is None else OutputLoss(_summed(each.loss), each.weight) for each in outputs],
        averages,
    )


def _as_output(given: Any) -> OutputLoss | None:
    if given is None or isinstance(given, OutputLoss):
        return given
    if callable(given) and not isinstance(given, Loss):
        return OutputLoss(FunctionLoss(given))
    return OutputLoss(losses.get(given))


def _summed(loss: Loss) -> Loss:
    summed = copy(loss)
    summed.reduction = "sum"
    return summed


def check_global_batch_size(size: Any) -> None:
    if size is not None and (not isinstance(size, int | np.integer) or size < 0):
        raise InputError(
            f"value_and_gradients: expected a whole global_batch_size of at least 0, found {size!r}"
        )


def state_of_loop(optimizer: Optimizer, variables: list[Variable]) -> OptimizerState | None:
    """Return how far an optimizer has come in loops over these variables; None: it was not used there.

    Variables that it has not updated have the slots with which they would begin.
    """
    application = ReplicaApplication.known(optimizer)
    if application is None or not any(variable in application.slots for variable in variables):
        return None
    slots: dict[str, dict[str, Array]] = {}
    for variable in variables:
        own = application.slots.get(variable)
        for name, array in (own[0] if own else optimizer.initial_slots(variable.copy_of(0))).items():
            slots.setdefault(name, {})[variable.name] = array.copy()
    return OptimizerState(int(optimizer.iterations), slots)


def leave_loop(optimizer: Optimizer, variables: list[Variable]) -> None:
    """Let the next loop go on from what `fit` makes of these variables' slots."""
    application = ReplicaApplication.known(optimizer)
    if application is not None:
        application.forget(variables)


class SharedReplica(Replica):
    """The memory of one step: the newest weights, and room for gradients."""

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
        return 0

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        raise AssertionError("a step of a program with a coordinator is handed in by train_shared")


def train_shared(
    model: Any, compiled: Compiled, batch: Batch, class_weight: Mapping[int, float] | None = None
) -> dict[str, float]:
    """Train one step on one batch: gradients of the newest weights, applied on the servers at once.

    Raises:
        NonFiniteGradientError: a gradient holds NaN or infinity; nothing is applied.
    """
    shared = model.strategy.shared
    assert shared is not None, "only a program with a coordinator trains so"
    batch = batch if class_weight is None else batch.weighted(class_weight)
    replica = SharedReplica(model, shared.weights(model))
    number = int(compiled.optimizer.iterations)
    chance = partial(chance_of, model.strategy.seed, 0, 1, number)
    step = TrainingStep(model, compiled.losses, batch, replica, chance)
    logs = model._train_step(step)
    loss = step.contribute(logs)
    rows = [each.rows for each in replica.rows.values()]
    if any_non_finite([*replica.gradients.values(), *rows]):
        raise NonFiniteGradientError(
            f"{model.name}: the gradient of a batch of loss {loss} holds NaN or infinity; it was not applied"
        )
    gradients, variables = {**replica.gradients, **replica.rows}, model.in_replicas().by_name
    compiled.optimizer.apply_gradients([(each, variables[name]) for name, each in gradients.items()])
    if replica.updates:
        shared.assign(model, replica.updates)
    totals = Totals(compiled)
    totals.add(batch, step, logs)
    return totals.results()
