"""One batch, as `Model.train_step` and `Model.test_step` are given it, and the sums of what steps return.

A training step fills `gradients`, which the training loop hands to the strategy, so a step of your own runs
on every strategy:

    class Noisy(dt.Sequential):                                # other data, other gradients
        def train_step(self, step):
            loss = step.loss_and_gradients(step.x + step.rng.normal(0, 0.1, step.x.shape))
            for gradient in step.gradients.values():
                gradient += step.rng.normal(0, 0.01, gradient.shape)
            return {"loss": loss}

    class Distilled(dt.Sequential):                            # a loss of your own, in two halves
        def train_step(self, step):
            error = step.forward() - self.teacher(step.x)
            step.backward(2 * error / error.size)
            return {"loss": np.mean(error**2), "largest": np.max(abs(error))}

Random numbers of a step, for layers that drop values and `step.rng`, follow from the seed, the call of `fit`,
the batch and its part, and from nothing else. A part thus has the same gradient whichever replica computes
it, however often, after any restart, rollback or resume.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dtrain.errors import InputError, ProgramError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.heads import WHOLE, Losses, LossScale, by_output, masked
from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.passes import Going, Pass
from dtrain.learning.layers.base import Chance, StepSums, generator_of
from dtrain.messages import Sums
from dtrain.protocol.tally import merged
from dtrain.strategies.interface import Computing, NoExchangeError, Replica, Weights
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled
from dtrain.training.parts import Batch, Part
from dtrain.types import Array

Logs = Mapping[str, Any]
"""Numbers by name, ``loss`` among them: what a step returns. The log has their means over an epoch's
batches.
"""

T = TypeVar("T")


class EvaluationStep:
    """One batch and fixed weights.

    Attributes:
        x, y, sample_weight: of the batch.
        outputs: of the model, for the metrics; set by the methods, or by you.
        losses: each output's, as ``NAME_loss``, where there are several; set by the methods.
        masks: each output's mask, or None; set by the methods.
    """

    def __init__(self, model: Architecture, loss: Losses | None, batch: Batch, weights: Weights) -> None:
        self.x = batch.x
        self.y = batch.y
        self.sample_weight = batch.sample_weight
        self._weights = weights
        self.outputs: Any = None
        self.losses: dict[str, float] = {}
        self.masks: Sequence[Array | None] = ()
        self._model = model
        self._loss = loss

    @property
    def weights(self) -> Weights:
        """Every variable by name; read only."""
        return self._weights

    @property
    def loss(self) -> Losses:
        """The compiled losses.

        Raises:
            InputError: `compile` was given none.
        """
        if self._loss is None:
            raise InputError(f"{self._model.name}: call compile with a loss first")
        return self._loss

    def compute_loss(self) -> float:
        """Return the compiled loss of the outputs, with the penalties of regularizers."""
        return self._noted(
            self._model.network.loss_and_outputs(self.weights, self.x, self.y, self.loss, self.sample_weight)
        ).loss

    def forward(self) -> Any:
        """Return the outputs."""
        self.outputs = self._model.network.predict(self.weights, self.x)
        return self.outputs

    def _noted(self, result: StepResult) -> StepResult:
        self.outputs = result.outputs
        self.masks = result.masks
        if isinstance(result.outputs, list):
            self.losses = {f"{name}_loss": value for name, value in result.losses.items()}
        return result


class TrainingStep(EvaluationStep):
    """One replica's batch, the newest weights, and the gradients that it will contribute.

    Attributes:
        updates: new values of variables that are not trained, by name, such as moving averages; the methods
            fill it.
    """

    def __init__(
        self,
        model: Architecture,
        loss: Losses | None,
        batch: Batch,
        replica: Replica,
        chance: Chance,
        scale: LossScale = WHOLE,
        *,
        sums: StepSums | None = None,
        computing: Computing | None = None,
    ) -> None:
        """Begin.

        Args:
            model: what computes.
            loss: the compiled ones.
            batch: this replica's examples.
            replica: the memory of weights and gradients.
            chance: the source of chance of this part.
            scale: what makes the gradients those of a whole batch.
            sums: over the replicas of the step, where layers need them.
            computing: which part of the model this task has; None: all of it.
        """
        super().__init__(model, loss, batch, replica.weights)
        self.updates: dict[str, Array] = {}
        self._replica = replica
        self._computing = computing or Computing()
        self.sums = sums
        self._scale = scale
        self._begun = False
        self._pass: Pass | None = None
        self._chance = chance

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers of this part of this batch, the same in whichever replica computes it again."""
        self._chance = chance = generator_of(self._chance)
        return chance

    @property
    def sees_outputs(self) -> bool:
        """Whether this task has computed the outputs of the model; of several stages the last one has."""
        return self._computing.stage is None or self.outputs is not None

    def _drawn_from(self) -> np.random.Generator:
        """Return `rng`, made when asked for: few models ask, and making it costs a tenth of a small step."""
        return self.rng

    @property
    def weights(self) -> Weights:
        """Every variable by name; read only."""
        return self._weights

    @property
    def gradients(self) -> dict[str, Array]:
        """One array for every trained variable, by name: zero at first; the methods add to it.

        Those of large embedding tables stand in `row_gradients`.
        """
        if not self._begun:
            for array in self._replica.gradients.values():
                array.fill(0)
            self._replica.rows.clear()
            self._begun = True
        return self._replica.gradients

    @property
    def row_gradients(self) -> dict[str, SparseRows]:
        """Gradients of the rows read of large embedding tables, by name; ids int64, ascending, each once."""
        return self._replica.rows

    def loss_and_gradients(
        self,
        x: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        loss: Losses | None = None,
    ) -> float:
        """Add the gradients of a loss, with the penalties of regularizers, and return it.

        Args:
            x, y, sample_weight: the batch's, where they are None.
            loss: the compiled ones, if None.
        """
        x = self.x if x is None else x
        y = self.y if y is None else y
        weight = self.sample_weight if sample_weight is None else sample_weight
        network = self._computing.network or self._model.network
        compute = partial(
            self._computing.stage or network.loss_and_gradients,
            self._weights,
            x,
            y,
            loss or self.loss,
            sample_weight=weight,
            rng=self._drawn_from,
            scale=self._scale,
            sums=self.sums,
        )
        result = self._noted(self.write_gradients(lambda places: compute(gradients=places)))
        if result.row_gradients:
            self._add_rows(result.row_gradients)
        self.updates.update(result.state_updates)
        return result.loss

    def forward(self, x: Any = None) -> Any:
        """Return the outputs in training mode, for a loss of your own; then call `backward`.

        Other calls may come between.
        """
        self._check_whole("forward")
        self._pass = None  # the memory of a pass that did not go back is free
        given = self.x if x is None else x
        self._pass = self._model.network.forward(
            self._weights, given, Going(True, self._drawn_from, self.sums)
        )
        outputs = [np.array(output) for output in self._pass.outputs]
        self.outputs = outputs[0] if len(outputs) == 1 else outputs
        self.masks = self._pass.masks
        self.updates.update(self._pass.state_updates())
        return self.outputs

    def backward(self, gradient: Any) -> None:
        """Add the gradients that follow from that of a loss by the outputs of `forward` (a list for several).

        Raises:
            ProgramError: there was no `forward` since the last `backward`.
            InputError: a gradient does not have its output's shape.
        """
        if self._pass is None:
            raise ProgramError(f"{self._model.name}: call forward before each backward")
        run = self._pass
        self._pass = None
        upstream = [
            np.array(each, np.float32)
            for each in (gradient if isinstance(gradient, list | tuple) else [gradient])
        ]
        expected = [output.shape for output in run.outputs]
        if [each.shape for each in upstream] != expected:
            raise InputError(
                f"{self._model.name}: backward: expected {expected}, found "
                f"{[each.shape for each in upstream]}"
            )
        self._add_rows(
            self.write_gradients(lambda gradients: run.backward(upstream, gradients, self._scale.penalties))
        )

    def add_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Add gradients that you computed, by the variables' names.

        `SparseRows` may be given for embedding tables; those that travel by rows (`row_gradients`) may be
        left out.

        Raises:
            InputError: a variable's is missing, has no variable, or has another shape.
        """
        self._check_whole("add_gradients")
        name = self._model.name
        arrays = self._replica.gradients
        tables = {spec.name for spec in self._model.created_variables if spec.sparse and spec.trainable}
        rows = {
            key: each.summed()
            for key, each in gradients.items()
            if key in tables and isinstance(each, SparseRows)
        }
        gradients = {key: each for key, each in gradients.items() if key not in rows}
        for key in tables & set(arrays) & set(rows):
            gradients[key] = rows.pop(key).dense(arrays[key].shape)
        if set(gradients) != set(arrays):
            raise InputError(f"{name}: expected gradients of {sorted(arrays)}, found {sorted(gradients)}")
        for key, array in arrays.items():
            if np.shape(gradients[key]) != array.shape:
                raise InputError(
                    f"{name}: {key}: expected a gradient of shape {array.shape}, found "
                    f"{np.shape(gradients[key])}"
                )

        def fill(places: dict[str, Array]) -> None:
            for key, place in places.items():
                place[...] = gradients[key]

        self.write_gradients(fill)
        self._add_rows(rows)

    def _check_whole(self, method: str) -> None:
        """Raise a `ProgramError` in a pipeline, of which each task has one stage of the model."""
        if self._computing.stage is not None:
            raise ProgramError(
                f"{self._model.name}: train_step: {method} needs the whole model in one task, and here each "
                "has a stage of it; expected loss_and_gradients alone, or another strategy than pipeline"
            )

    def write_gradients(self, write: Callable[[dict[str, Array]], T]) -> T:
        """Add gradients that `write` writes into arrays by the variables' names; return its result.

        It must overwrite each of them whole, as they hold anything. So nothing is cleared or copied, as
        `gradients` and `add_gradients` have to.
        """
        if not self._begun:
            self._begun = True
            self._replica.rows.clear()
            return write(self._replica.gradients)
        more = {name: np.empty_like(array) for name, array in self._replica.gradients.items()}
        result = write(more)
        for name, array in more.items():
            self._replica.gradients[name] += array
        return result

    def contribute(self, logs: Logs) -> float:
        """Complete the contribution: new values of untrained variables; the loss.

        Raises:
            ProgramError: the step computed no gradients, or no loss.
        """
        if not self._begun:
            raise ProgramError(
                f"{self._model.name}: train_step: expected gradients (loss_and_gradients, backward), found "
                "none"
            )
        if not isinstance(logs, dict | Mapping) or "loss" not in logs:
            raise ProgramError(
                f"{self._model.name}: train_step: expected a dict of numbers with 'loss' in it, found "
                f"{logs!r}"
            )
        for name, array in self._replica.updates.items():
            array[...] = self.updates.get(name, self.weights[name])
        return float(logs["loss"])

    def _add_rows(self, more: Mapping[str, SparseRows]) -> None:
        for name, rows in more.items():
            before = self._replica.rows.get(name)
            self._replica.rows[name] = rows if before is None else before.plus(rows)


class Totals:
    """Sums over examples of the steps' numbers, and states of the metrics, which this object owns."""

    def __init__(self, compiled: Compiled) -> None:
        self._names = compiled.names
        self._metrics = compiled.metrics()
        self.reset()

    def reset(self) -> None:
        self._sums: dict[str, float] = {}
        self.examples = 0
        for each in self._metrics:
            each.metric.reset_state()

    def add(self, batch: Batch, step: EvaluationStep, logs: Logs) -> None:
        self.examples += batch.size
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value) * batch.size
        if not self._metrics:
            return
        outputs = step.outputs if isinstance(step.outputs, list) else [step.outputs]
        if len(outputs) != len(self._names) or step.outputs is None:
            own = f"{len(outputs)}: see `train_step` for your own"
            found = "none: set step.outputs" if step.outputs is None else own
            raise InputError(f"metrics: expected {len(self._names)} outputs, found {found}")
        targets = by_output(step.y, self._names, "targets")
        weights = by_output(step.sample_weight, self._names, "sample weights")
        masks = step.masks or [None] * len(outputs)
        for each in self._metrics:
            weight = weights[each.output] if each.weighted else None
            mask = masks[each.output]
            if mask is not None:
                weight = masked(weight, mask, is_mean=False)
            if each.weighted or mask is not None:
                each.metric.update_state(targets[each.output], outputs[each.output], sample_weight=weight)
            else:
                each.metric.update_state(targets[each.output], outputs[each.output])

    def of_one(self, batch: Batch, step: EvaluationStep, logs: Logs) -> Sums:
        size = batch.size
        numbers = [float(size), *[float(value) * size for value in logs.values()]]
        if self._metrics:
            self.reset()
            self.add(batch, step, logs)
        for each in self._metrics:
            for value in each.metric.state.values():
                numbers += [float(value)] if np.ndim(value) == 0 else np.ravel(value).tolist()
        return Sums(names=tuple(logs), totals=struct.pack(f"<{len(numbers)}d", *numbers))

    def results(self) -> dict[str, float]:
        """Return the numbers so far, the loss first."""
        means = {name: total / max(1, self.examples) for name, total in self._sums.items()}
        return means | {each.label: _number(each.metric.result()) for each in self._metrics}

    def results_of(self, sums: Sequence[Sums]) -> dict[str, float]:
        """Return the numbers that follow from sums of any batches; the loss of no batch is NaN."""
        if not sums:
            return {"loss": nan}
        sizes = [np.size(value) for each in self._metrics for value in each.metric.state.values()]
        means, states = merged(sums, sum(sizes))
        position = 0
        for each in self._metrics:
            state = each.metric.state
            for name, value in state.items():
                size = np.size(value)
                state[name] = states[position : position + size].reshape(np.shape(value))
                position += size
        return means | {each.label: _number(each.metric.result()) for each in self._metrics}


def _number(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


STEPS = 1
"""The last word of the seeds of steps: numpy takes a shorter seed for one that ends in zeros."""


def chance_of(seed: int, first_step: int, parts: int, number: int) -> np.random.Generator:
    """Make the generator of a part of a batch that is cut into `parts`."""
    batch, part = divmod(number, parts)
    return np.random.default_rng([seed, batch, part, first_step, STEPS])


class StepMaker(NamedTuple):
    """Maker of the steps of one call of `fit`, of what they have in common.

    Attributes:
        chance: makes the generator of a part by its number.
        of_parts: whether a step is made of parts of its batch; in local steps each is a step of its own.
        sums: whether layers need sums over the replicas of a step.
        computing: which part of the model this task has.
    """

    model: Architecture
    loss: Losses | None
    chance: Callable[[int], np.random.Generator]
    of_parts: bool
    weighs_examples: bool
    sums: bool
    computing: Computing

    def make(self, replica: Replica, number: int, part: Part, batch: Batch) -> TrainingStep:
        scale = part.scale(self.weighs_examples) if self.of_parts else WHOLE
        sums = None
        if self.sums:
            sums = StepSums(partial(_sum_in_step, replica), batch.size if self.weighs_examples else 1.0)
        drawn = partial(self.chance, number)
        return TrainingStep(
            self.model, self.loss, batch, replica, drawn, scale, sums=sums, computing=self.computing
        )


def _sum_in_step(replica: Replica, array: Array) -> Array:
    """Return the sum of what the replicas of a step give; raise a `ProgramError` where they do not meet."""
    try:
        return np.asarray(replica.all_reduce(ReduceOp.SUM, array))
    except NoExchangeError:
        raise ProgramError(
            "fit: BatchNormalization(synchronized=True) needs sums over all replicas within a step; expected "
            "a strategy whose replicas compute all parts of a step at the same time (mirrored, "
            "central_storage or multi_worker_mirrored, without backup workers), found one whose replicas do "
            "not; leave out synchronized=True, or choose such a strategy"
        ) from None
