"""`Model` and `Sequential`: what a program holds. Names, arguments and defaults are Keras's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.callbacks import Callback, CallbackList, History
from dtrain.data.input_context import InputContext
from dtrain.errors import CheckpointError, InputError
from dtrain.learning import losses, metrics, optimizers
from dtrain.learning.layers import Layer
from dtrain.learning.networks import Network
from dtrain.strategies.choice import get_strategy
from dtrain.strategy import Array, Problem, Session, Strategy, Weights
from dtrain.training import evaluation
from dtrain.training.batches import Batch, Batches, joined
from dtrain.training.loop import EpochLog, Epochs, TrainingLoop, Validate


class Model:
    """A network with the strategy in whose scope it was made: `compile`, `fit`, `evaluate`, `predict`.

    ``Model(inputs, outputs)`` is a graph between the results of `dt.layers.Input` and of layers; see `Sequential` for a stack.
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, *, name: str | None = None) -> None:
        self.name = name or type(self).__name__.lower()
        self.strategy: Strategy = get_strategy()
        self._graph = (inputs, outputs)
        self._network: Network | None = None if outputs is None else Network.from_graph(inputs, outputs)
        self._values: dict[str, Array] | None = None
        self.optimizer: optimizers.Optimizer | None = None
        self.loss: losses.Loss | None = None
        self.metrics: list[metrics.Metric] = []
        self.stop_training = False
        self._owner = object()

    # What it is made of

    @property
    def network(self) -> Network:
        """The layers as a whole.

        Raises:
            InputError: there are none yet.
        """
        if self._network is None:
            raise InputError(f"{self.name}: has no layers; give them to the constructor")
        return self._network

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer once, in the order of use."""
        return self.network.layers

    @property
    def built(self) -> bool:
        """Whether the variables' shapes are known."""
        return self._network is not None and self._network.built

    def build(self, input_shape: Any) -> None:
        """Fix the shapes for inputs of this shape, without the batch axis."""
        if not self.network.built:
            self.network.build(input_shape)

    @property
    def weights(self) -> dict[str, Array]:
        """Every variable by name: of the training under way or the last one, else the first values."""
        if self._values is None:
            if not self.built:
                raise InputError(
                    f"{self.name}: its variables' shapes are unknown; give the first layer an input_shape or call build"
                )
            self._values = self.network.initial_values(self.strategy.seed)
        return self._values

    def get_weights(self) -> list[Array]:
        """Copies of every variable, in the order of creation."""
        return [np.array(self.weights[spec.name]) for spec in self.network.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set every variable, in the order of creation.

        Raises:
            InputError: there are more or fewer, or a shape differs.
        """
        variables = self.network.variables
        if len(weights) != len(variables):
            raise InputError(f"set_weights: expected {len(variables)} arrays, found {len(weights)}")
        for spec, value in zip(variables, weights, strict=True):
            if np.shape(value) != spec.shape:
                raise InputError(f"set_weights: {spec.name} has shape {spec.shape}, found {np.shape(value)}")
        self._values = {spec.name: np.array(value, spec.dtype) for spec, value in zip(variables, weights, strict=True)}

    # Training

    def compile(
        self,
        optimizer: str | Mapping[str, Any] | optimizers.Optimizer = "rmsprop",
        loss: str | losses.Loss | None = None,
        metrics: Sequence[str | metrics.Metric] = (),
    ) -> None:
        """Say how the model is trained; see `tf.keras.Model.compile`."""
        self.optimizer = optimizers.get(optimizer)
        self.loss = losses.get(loss) if loss is not None else None
        self.metrics = [_metric(each) for each in metrics]
        self._owner = object()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Sequence[Callback] = (),
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
    ) -> History:
        """Train until the global step has reached epochs x steps_per_epoch; see CONTRACT section 4 and `tf.keras.Model.fit`.

        In the evaluator this is the evaluation loop: every newest checkpoint is evaluated on `validation_data`.

        Args:
            x: ``(x, y)`` arrays, a Dataset of batches, or a function of an InputContext that returns one.
            batch_size: of one replica; only for arrays. 32 by default.
            steps_per_epoch: global steps; by default every batch is seen once an epoch over all replicas.

        Raises:
            InputError: data or arguments do not fit.
        """
        strategy, validation = self.strategy, None
        if validation_data is not None:
            validation = Batches.of(validation_data, batch_size=validation_batch_size or batch_size, shuffle=False, seed=0)
        if strategy.evaluates:
            return self._follow(validation, validation_steps)
        loss, optimizer = self._compiled()
        batches = Batches.of(
            joined(x, y, sample_weight), batch_size=batch_size, shuffle=shuffle, seed=strategy.seed, context=self._input_context()
        )
        self._build_for(batches)
        plan = Epochs.of(batches, steps_per_epoch, epochs, initial_epoch, strategy.num_replicas_in_sync)
        values = self.weights
        problem = Problem(self.network.variables, lambda: values, optimizer.get_config(), plan.max_steps, self._owner)
        history = History()
        session = strategy.open(problem)
        self._values = session.weights
        try:
            loop = TrainingLoop(self.network, loss, session, plan, np.random.default_rng([strategy.seed, session.rank + 1]))
            if strategy.is_leader:
                self._account(loop, [*callbacks, history], validation, validation_steps, bool(verbose))
            used = (session.global_step - session.first_step) * session.batches_per_step
            loop.run(batches.forever(session.rank, session.replicas, used))
        except BaseException as error:
            session.close(error)
            raise
        finally:
            self._values = {name: np.array(value) for name, value in session.weights.items()}
        session.close()
        if loop.callbacks is not None:
            loop.callbacks.call("on_train_end")
        return history

    def _account(
        self,
        loop: TrainingLoop,
        callbacks: Sequence[Callback],
        validation: Batches | None,
        validation_steps: int | None,
        verbose: bool,
    ) -> None:
        """Give the leader's loop its log, its callbacks and its validation."""
        params = {"epochs": loop.epochs.epochs, "steps": loop.epochs.steps_per_epoch}
        loop.log = EpochLog([_metric(metric.get_config()) for metric in self.metrics])
        loop.callbacks = CallbackList(callbacks, self, params)
        loop.verbose = verbose
        if validation is not None and (loop.callbacks.monitor_validation or not self.strategy.has_evaluator):
            loop.validate = self._validation(loop.session, validation, validation_steps)
        loop.callbacks.call("on_train_begin")

    def _validation(self, session: Session, validation: Batches, steps: int | None) -> Validate:
        return lambda: self._evaluate(session.weights, validation, steps)

    def _follow(self, validation: Batches | None, steps: int | None) -> History:
        """The evaluator's fit."""
        history = History()
        if validation is None:
            print("the evaluator has nothing to do: fit was given no validation_data", flush=True)
            return history
        self._build_for(validation)
        self._compiled()
        expected = {spec.name: spec.shape for spec in self.network.variables}
        for checkpoint in self.strategy.checkpoints():
            found = {name: np.shape(value) for name, value in checkpoint.weights.items()}
            if found != expected:
                raise CheckpointError(f"the checkpoint of step {checkpoint.global_step} holds {found}; this model has {expected}")
            self._values = dict(checkpoint.weights)
            results = self._evaluate(self._values, validation, steps)
            numbers = " - ".join(f"{name}: {value:.4f}" for name, value in results.items())
            print(f"evaluation at step {checkpoint.global_step} - {numbers}", flush=True)
            self.strategy.evaluated(checkpoint.global_step, results)
            history.on_epoch_end(checkpoint.global_step, {f"val_{name}": value for name, value in results.items()})
        return history

    # Using it

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Loss and metrics: a number, a list, or with `return_dict` a dict; see `tf.keras.Model.evaluate`."""
        batches = Batches.of(joined(x, y, sample_weight), batch_size=batch_size, shuffle=False, seed=0)
        self._build_for(batches)
        results = self._evaluate(self.weights, batches, steps)
        if return_dict:
            return results
        return list(results.values()) if len(results) > 1 else results["loss"]

    def predict(self, x: Any, batch_size: int | None = None, verbose: int | str = "auto", steps: int | None = None) -> Any:
        """The outputs for all inputs; see `tf.keras.Model.predict`."""
        batches = Batches.of(x, batch_size=batch_size, shuffle=False, seed=0)
        self._build_for(batches)
        return evaluation.predict(self.network, self.weights, batches.once(steps))

    def __call__(self, x: Any) -> Any:
        """The outputs for one batch, in inference mode."""
        batch = Batch(x)
        self.build(batch.input_shape)
        return self.network.predict(self.weights, x)

    def _evaluate(self, weights: Weights, batches: Batches, steps: int | None) -> dict[str, float]:
        loss, _ = self._compiled()
        fresh = [_metric(metric.get_config()) for metric in self.metrics]
        return evaluation.evaluate(self.network, weights, batches.once(steps), loss, fresh)

    def _compiled(self) -> tuple[losses.Loss, optimizers.Optimizer]:
        if self.loss is None or self.optimizer is None:
            raise InputError(f"{self.name}: call compile with an optimizer and a loss first")
        return self.loss, self.optimizer

    def _build_for(self, batches: Batches) -> None:
        if not self.built:
            self.build(batches.first().input_shape)

    def _input_context(self) -> InputContext:
        """What a data function is told: one pipeline a replica."""
        replicas = self.strategy.num_replicas
        return InputContext(replicas, max(self.strategy.rank, 0), self.strategy.num_replicas_in_sync)


class Sequential(Model):
    """A stack of layers: ``Sequential([dt.layers.Dense(64, activation="relu"), dt.layers.Dense(10)])``."""

    def __init__(self, layers: Sequence[Layer] = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self._stack = list(layers)

    def add(self, layer: Layer) -> None:
        """Put a layer on top.

        Raises:
            InputError: the stack is already in use.
        """
        if self._network is not None:
            raise InputError(f"{self.name}: layers can only be added before the model is used")
        self._stack.append(layer)

    @property
    def network(self) -> Network:
        """The layers as a whole."""
        if self._network is None and self._stack:
            self._network = Network(self._stack)
        return super().network

    @property
    def built(self) -> bool:
        """Whether the variables' shapes are known."""
        return bool(self._stack) and self.network.built


def _metric(identifier: str | Mapping[str, Any] | metrics.Metric) -> metrics.Metric:
    """A metric of one's own: never shared between loops."""
    return metrics.get(identifier.get_config() if isinstance(identifier, metrics.Metric) else identifier)
