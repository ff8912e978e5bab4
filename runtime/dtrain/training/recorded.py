"""Models within a tape, and steps of `fit` in Keras's form, `train_step(self, data)`.

A model that is called in a tape is one node: its own forward and backward. The variables that a line sees
are those of the replica that it runs in; in a step of `fit` they are the step's newest weights, and what
`apply_gradients` is given becomes the step's contribution, which the strategy applies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from dtrain.errors import ProgramError
from dtrain.learning.core.regularizers import Regularizer
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.functions.recording import Backward, Forward, bare, compute, is_recorded
from dtrain.learning.functions.tensors import CHANCE, WATCHERS, Source, plain, tensor
from dtrain.learning.graphs.heads import by_output
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import Going, Pass, only
from dtrain.learning.layers.base import StepSums, generator_of
from dtrain.learning.metrics import Mean
from dtrain.learning.optimizers.applied import Pairs
from dtrain.training.architecture import Architecture, names_by_weight
from dtrain.training.compiled_model import CompiledModel
from dtrain.training.custom_loops import sums_over_replicas
from dtrain.training.steps import EvaluationStep, Logs, TrainingStep
from dtrain.types import Array, Arrays


class Surroundings(NamedTuple):
    """Variables and circumstances that a call of a model finds around it.

    Attributes:
        variables: those that are trained, by name.
        others: the values of all variables.
        chance: the source of random numbers.
        take_updates: is given new values of variables that are not trained.
    """

    variables: Mapping[str, Source]
    others: Arrays
    chance: Callable[[], np.random.Generator]
    take_updates: Callable[[Arrays], object]
    sums: StepSums | None = None


def _of_network(
    network: Network, around: Surroundings, n: int, training: bool, updates: dict[str, Array]
) -> tuple[Forward, Backward]:
    """Return forward and backward of a network, functions of `n` inputs and its trained variables.

    `updates` takes new values of variables that are not trained.
    """
    variables = list(around.variables)
    rng = around.chance()
    begun = rng.bit_generator.state
    last: Pass | None = None

    def passed(arrays: Sequence[Array]) -> Pass:
        weights = {**around.others, **dict(zip(variables, arrays[n:], strict=True))}
        rng.bit_generator.state = begun
        x = arrays[0] if n == 1 else list(arrays[:n])
        return network.forward(
            weights, x, Going(training, rng, around.sums, reached=range(len(network.graph.steps)))
        )

    def forward(*arrays: Array) -> Any:
        nonlocal last
        last = passed(arrays)
        updates.update(last.state_updates())
        outputs = [np.array(each) for each in last.outputs]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def backward(gradient: Any, *arrays: Array) -> list[Any]:
        nonlocal last
        run = last or passed(arrays)  # a pass goes back once; another tape has it run again
        last = None
        places = {name: np.zeros_like(array) for name, array in zip(variables, arrays[n:], strict=True)}
        given = gradient if isinstance(gradient, tuple) else (gradient,)
        run.backward([np.array(each, np.float32) for each in given], places, 0.0, 0.0)
        return [*run.of_inputs, *places.values()]

    return forward, backward


def is_watched(x: Any) -> bool:
    """Return whether a call of a model has to be recorded, or sees the weights of a step."""
    return bool(WATCHERS.get()) or STEP.get() is not None or is_recorded(x)


def call_in_tape(model: Architecture, x: Any, training: bool | None) -> Any:
    """Return the outputs of a model, recorded where a tape watches its variables or inputs."""
    inputs = [tensor(plain(each)) for each in (x if isinstance(x, list | tuple) else [x])]
    shapes = [np.shape(each)[1:] for each in inputs]
    model.build(only(shapes))
    if isinstance(x, Mapping):
        inputs = [tensor(plain(x[name])) for name in model.network.input_names]
    around = _around(model)
    updates: dict[str, Array] = {}
    run = _of_network(model.network, around, len(inputs), bool(training), updates)
    result = compute(model.name, *run, *inputs, *around.variables.values())
    if training:
        around.take_updates(updates)
    step = STEP.get()
    if step is not None and step.model is model:
        step.step.outputs = bare(result) if not isinstance(result, tuple) else list(map(bare, result))
    return list(result) if isinstance(result, tuple) else result


def _around(model: Architecture) -> Surroundings:
    step = STEP.get()
    found = None if step is None else step.around(model)
    if found is not None:
        return found
    variables = model.in_replicas()
    index = variables.index() or 0
    trained = {spec.name: variables.by_name[spec.name] for spec in model.variable_specs if spec.trainable}
    replicas = variables.group.num_replicas_in_sync
    sums = sums_over_replicas() if replicas > 1 and model.network.sums_over_replicas else None
    chance = CHANCE.get() or variables.rng(index, model.strategy.seed)
    return Surroundings(trained, model.arrays, chance, partial(variables.take_state, index), sums)


def penalties(model: Architecture) -> list[Any]:
    """Return the penalties of the regularizers of weights, recorded in a tape."""
    around = _around(model)

    def of_one(penalty: Regularizer, weight: Any) -> Any:
        def backward(gradient: Any, array: Array) -> list[Array]:
            found = np.zeros_like(array)
            penalty.add_gradient(array, found, float(gradient))
            return [found]

        return compute("penalty", lambda array: np.float32(penalty(array)), backward, weight)

    return [
        of_one(penalty, around.variables.get(name, around.others[name]))
        for penalty, name in model.network.graph.regularized
    ]


class StepVariable(Source):
    """A variable in a step of `fit`: the newest weights, for the tape and `apply_gradients`."""

    trainable = True

    def __init__(self, name: str, state: "StepState") -> None:
        self.name = name
        self._state = state
        self.shape = self.read().shape
        self.dtype = self.read().dtype

    def read(self) -> Array:
        return self._state.step.weights[self.name]

    def application_of(self, optimizer: Any) -> "StepState":
        """Return the step, where gradients are collected."""
        if optimizer is not self._state.model.optimizer:
            raise ProgramError(
                f"{self._state.model.name}: train_step: expected self.optimizer, which compile was given, "
                "found another; a model with several optimizers is trained by a loop with dt.GradientTape"
            )
        return self._state


class StepState:
    """One step of `fit` whose `train_step` has Keras's form."""

    def __init__(self, model: Any, step: EvaluationStep) -> None:
        self.model = model
        self.step = step
        self.gradients: dict[str, Any] = {}

    @cached_property
    def variables(self) -> dict[str, StepVariable]:
        return {
            spec.name: StepVariable(spec.name, self) for spec in self.model.variable_specs if spec.trainable
        }

    @cached_property
    def metrics(self) -> list[Any]:
        """The mean of the loss, and copies of the compiled metrics, for this batch."""
        compiled = [] if self.model.compiled is None else self.model.compiled.metrics()
        return [Mean(name="loss"), *(each.metric for each in compiled)]

    @property
    def data(self) -> Any:
        """The batch in Keras's form: x alone, (x, y), or (x, y, sample_weight)."""
        step = self.step
        if step.sample_weight is not None:
            return step.x, step.y, step.sample_weight
        return step.x if step.y is None else (step.x, step.y)

    def around(self, model: Architecture) -> Surroundings | None:
        """Return what a call of the step's model, or of one within it, finds; None for other models."""
        theirs = names_by_weight(self.model.network.graph)
        ours = names_by_weight(model.network.graph)
        if not ours.keys() <= theirs.keys():
            return None
        names = {name: theirs[weight] for weight, name in ours.items()}
        trained = {name: self.variables[outer] for name, outer in names.items() if outer in self.variables}
        others = {name: self.step.weights[outer] for name, outer in names.items()}
        step = self.step
        if not isinstance(step, TrainingStep):
            return Surroundings(trained, others, lambda: np.random.default_rng(0), lambda updates: None)

        def take(updates: Arrays) -> None:
            step.updates.update({names[name]: value for name, value in updates.items()})

        return Surroundings(trained, others, lambda: step.rng, take, step.sums)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Let the metrics of the step count these predictions, as `Model.compiled_metrics` does."""
        self.step.outputs = list(map(bare, y_pred)) if isinstance(y_pred, list | tuple) else bare(y_pred)
        for metric in self.metrics[1:]:
            metric.update_state(y_true, self.step.outputs)

    # As the place where an optimizer is applied

    def build(self, variables: Sequence[Any]) -> None:
        """Do nothing: the strategy keeps the slots."""

    def aggregated(self, pairs: Pairs) -> Pairs:
        return pairs

    def finalize(self, variables: Sequence[Any]) -> None:
        """Do nothing: `fit` does it."""

    def apply(self, pairs: Pairs, *, aggregates: bool) -> None:
        for gradient, variable in pairs:
            if gradient is not None:
                before = self.gradients.get(variable.name)
                given = gradient if isinstance(gradient, SparseRows) else np.asarray(gradient)
                self.gradients[variable.name] = given if before is None else before + given

    def contribute(self) -> None:
        """Hand the gradients to the step: 0 for variables that were given none."""
        step = self.step
        if not isinstance(step, TrainingStep) or not self.gradients:
            return
        arrays = step.gradients
        found = {name: self.gradients.get(name, np.zeros_like(place)) for name, place in arrays.items()}
        for name in self.gradients.keys() - arrays.keys():
            table = self.gradients[name]
            ids = np.flatnonzero(np.any(table != 0, axis=tuple(range(1, np.ndim(table)))))
            found[name] = SparseRows(ids, table[ids])
        step.add_gradients(found)


STEP: ContextVar[StepState | None] = ContextVar("step", default=None)
"""The step of `fit` in which a line runs; None: it runs in none."""


@contextmanager
def _within(state: StepState) -> Iterator[None]:
    step = state.step
    rng = step.rng if isinstance(step, TrainingStep) else None
    tokens = STEP.set(state), CHANCE.set(None if rng is None else lambda: generator_of(rng))
    try:
        yield
    finally:
        STEP.reset(tokens[0])
        CHANCE.reset(tokens[1])


def step_method(model: Any, name: str) -> Callable[[Any], Any]:
    """Return a model's `train_step`, `test_step` or `predict_step` as a function of a step.

    Where its parameter is not called ``step``, it has Keras's form and is given the data of the batch.
    """
    method = getattr(model, name)
    if next(iter(signature(method).parameters), "step") == "step":
        return method  # type: ignore[no-any-return]

    def of_data(step: EvaluationStep) -> Any:
        state = StepState(model, step)
        own = type(model).metrics is not RecordedModel.metrics
        for metric in model.metrics if own else ():
            metric.reset_state()
        with _within(state):
            result = method(step.x if name == "predict_step" else state.data)
            if name == "predict_step":
                return bare(result)
            if not isinstance(result, Mapping):
                raise ProgramError(
                    f"{model.name}: {name}: expected a dict of numbers such as {{'loss': loss}}, found "
                    f"{type(result).__name__}; return it"
                )
            state.contribute()
            logs = {key: _number(value) for key, value in result.items()}
        if "loss" not in logs and logs:
            logs = {"loss": next(iter(logs.values())), **logs}
        return logs

    return of_data


def _number(value: Any) -> float:
    return float(np.mean(np.asarray(bare(value))))


def current(model: Any, what: str) -> StepState:
    """Return the step of `fit` in which a line runs; raise a `ProgramError` if it runs in none."""
    state = STEP.get()
    if state is None:
        raise ProgramError(f"{model.name}: {what}: expected to be in train_step or test_step, found neither")
    return state


def compiled_loss(model: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Return the compiled losses times their weights, with penalties; recorded in a tape."""
    outputs = y_pred if isinstance(y_pred, list | tuple) else [y_pred]
    names = model.network.output_names
    parts = zip(
        by_output(model._compiled().losses, names, "losses"),
        by_output(y_true, names, "targets"),
        outputs,
        by_output(sample_weight, names, "sample weights"),
        strict=True,
    )
    total: Any = sum(penalties(model), np.float32(0))
    for each, target, output, weight in parts:
        if each is not None:
            total = total + np.float32(each.weight) * np.mean(each.loss(target, output, weight))
    state = STEP.get()
    if state is not None:
        state.metrics[0].update_state(bare(total))
    return total


class RecordedModel(CompiledModel):
    """A compiled model with what `train_step(self, data)` and `test_step(self, data)` use."""

    def _variables_here(self) -> Mapping[str, Any]:
        """Return the variables as a line sees them: in a step of `fit` those of the step."""
        state = STEP.get()
        around = None if state is None else state.around(self)
        return super()._variables_here() if around is None else around.variables

    @property
    def _train_step(self) -> Callable[[TrainingStep], Logs]:
        return step_method(self, "train_step")

    @property
    def metrics(self) -> list[Any]:
        """The metrics given to `compile`; in a step of your own the loss's mean, and those of its batch."""
        state = STEP.get()
        return super().metrics if state is None else state.metrics

    @property
    def compiled_metrics(self) -> Any:
        """The metrics of `compile` in a step of your own: ``update_state(y, y_pred)``."""
        return current(self, "compiled_metrics")

    @property
    def compiled_loss(self) -> Callable[..., Any]:
        """The compiled loss in a step of your own: ``(y, y_pred) -> loss``, with the penalties."""
        return lambda y_true, y_pred, sample_weight=None, regularization_losses=None: self.compute_loss(
            None, y_true, y_pred, sample_weight
        )

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        """Return the compiled loss of predictions, with the penalties of regularizers; for a tape.

        Args:
            x: has no effect.
            y: targets; of several outputs a list or dict.
            y_pred: what the model has returned.
            sample_weight: a weight for each example.
        """
        return compiled_loss(self, y, y_pred, sample_weight)
