"""Models whose gradient comes from elsewhere: any function over a dict of numpy arrays, or a PyTorch module.

    def init(rng):
        return {"weight": rng.normal(size=2), "bias": np.zeros(1)}

    def loss_and_gradients(weights, x, y):
        error = x @ weights["weight"] + weights["bias"] - y
        gradients = {"weight": 2 * x.T @ error / len(x), "bias": 2 * np.mean(error, keepdims=True)}
        return np.mean(error**2), gradients

    model = dt.from_function(init, loss_and_gradients)
    model.compile(optimizer="sgd")
    model.fit((x, y))

Such a model trains on every strategy; `compile` needs no loss.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import numpy as np

from dtrain.errors import InputError
from dtrain.learning.graphs.networks import Network
from dtrain.training.models import Model
from dtrain.training.steps import EvaluationStep, Logs, TrainingStep
from dtrain.types import Array
from dtrain.variables import VariableSpec

Init = Callable[[np.random.Generator], Mapping[str, Any]]


class Functions(msgspec.Struct, frozen=True):
    """The functions of a `FunctionModel` (`from_function`)."""

    init: Init
    loss_and_gradients: Callable[..., Any]
    loss: Callable[..., Any] | None = None
    predict: Callable[[Mapping[str, Array], Any], Any] | None = None
    state: Collection[str] = ()


class FunctionModel(Model):
    """A model without layers: its variables and its steps are functions."""

    def __init__(self, functions: Functions, name: str | None = None) -> None:
        super().__init__(name=name)
        self._functions = functions
        self._variables = tuple(
            VariableSpec(key, value.shape, value.dtype.name, key not in functions.state)
            for key, value in self.initial_values(self.strategy.seed).items()
        )
        for spec in self._variables:
            if spec.trainable and not spec.dtype.startswith("float"):
                raise InputError(
                    f"{self.name}: {spec.name}: expected floats to train, or its name in `state`; found "
                    f"{spec.dtype}"
                )

    @property
    def network(self) -> Network:
        """Raise an `InputError`: there is no network."""
        raise InputError(f"{self.name}: a model made of functions has no layers")

    @property
    def built(self) -> bool:
        return True

    @property
    def variable_specs(self) -> tuple[VariableSpec, ...]:
        return self._variables

    @property
    def created_variables(self) -> tuple[VariableSpec, ...]:
        return self._variables

    def initial_values(self, seed: int) -> dict[str, Array]:
        return {
            str(key): np.array(value)
            for key, value in self._functions.init(np.random.default_rng(seed)).items()
        }

    def train_step(self, step: TrainingStep) -> Logs:
        loss, gradients, *state = self._functions.loss_and_gradients(step.weights, *_batch(step))
        step.add_gradients(gradients)
        step.updates.update(*state)
        if self._functions.predict is not None and self.compiled is not None and self.compiled.metrics():
            step.outputs = self._functions.predict(step.weights, step.x)
        return {"loss": loss}

    def test_step(self, step: EvaluationStep) -> Logs:
        """Return the loss, and set the outputs if there is a function of predictions."""
        functions = self._functions
        if functions.predict is not None:
            step.outputs = functions.predict(step.weights, step.x)
        if functions.loss is not None:
            return {"loss": functions.loss(step.weights, *_batch(step))}
        return {"loss": functions.loss_and_gradients(step.weights, *_batch(step))[0]}

    def predict_step(self, step: EvaluationStep) -> Any:
        if self._functions.predict is None:
            raise InputError(f"{self.name}: predict: from_function was given no predict")
        return self._functions.predict(step.weights, step.x)


def from_function(
    init: Init,
    loss_and_gradients: Callable[..., Any],
    *,
    loss: Callable[..., Any] | None = None,
    predict: Callable[[Mapping[str, Array], Any], Any] | None = None,
    state: Collection[str] = (),
    name: str | None = None,
) -> FunctionModel:
    """Return a model of functions over a dict of numpy arrays, which trains and is saved like any other.

    Args:
        init: ``(rng) -> {name: initial value}``; called in every task, with a generator that is the same in
            all.
        loss_and_gradients: ``(weights, x, y) -> (loss, {name: gradient})``, means over the batch's examples.
            Its arguments are those of the batch: x, x and y, or x, y and sample weights. The weights are read
            only. With `state` it returns their new values, too.
        loss: ``(weights, x, y) -> loss``, for evaluation; else the loss of `loss_and_gradients`.
        predict: ``(weights, x) -> outputs``, for `predict` and metrics.
        state: names of variables that have no gradient, such as moving averages.
        name: of the model; None: its class's name in lower case.

    Raises:
        InputError: a variable to be trained is not of floats.
    """
    return FunctionModel(Functions(init, loss_and_gradients, loss, predict, state), name)


def _batch(step: EvaluationStep) -> tuple[Any, ...]:
    if step.sample_weight is not None:
        return step.x, step.y, step.sample_weight
    return (step.x,) if step.y is None else (step.x, step.y)
