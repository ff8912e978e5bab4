"""`Model` and `Sequential`: what a program holds. Names, arguments and defaults are Keras's."""

from collections.abc import Mapping, Sequence
from typing import Any

from dtrain.callbacks import Callback, History
from dtrain.data.input_context import InputContext
from dtrain.errors import InputError
from dtrain.learning import losses, metrics, optimizers
from dtrain.learning.layers import Layer
from dtrain.learning.networks import Network
from dtrain.training import evaluation
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches, joined
from dtrain.training.epochs import Epochs
from dtrain.training.evaluation import Compiled, Validation
from dtrain.training.fitting import Fit


class Model(Architecture):
    """A network with the strategy in whose scope it was made: `compile`, `fit`, `evaluate`, `predict`.

    ``Model(inputs, outputs)`` is a graph between the results of `dt.layers.Input` and of layers; see `Sequential` for a stack.
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, *, name: str | None = None) -> None:
        super().__init__(None if outputs is None else Network.from_graph(inputs, outputs), name)
        self.optimizer: optimizers.Optimizer | None = None
        self.loss: losses.Loss | None = None
        self.metrics: list[metrics.Metric] = []
        self.stop_training = False
        self._owner = object()

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
            held_out = Batches.of(validation_data, batch_size=validation_batch_size or batch_size, shuffle=False, seed=0)
            validation = Validation(held_out, validation_steps)
        fit = Fit(self, self._compiled(), self._owner, callbacks, validation, verbose=bool(verbose))
        if strategy.evaluates:
            return fit.follow()
        batches = Batches.of(
            joined(x, y, sample_weight), batch_size=batch_size, shuffle=shuffle, seed=strategy.seed, context=self._input_context()
        )
        self.build_for(batches)
        return fit.run(batches, Epochs.of(batches, steps_per_epoch, epochs, initial_epoch, strategy.num_replicas_in_sync))

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
        self.build_for(batches)
        results = self._compiled().evaluate(self.network, self.weights, batches.once(steps))
        if return_dict:
            return results
        return list(results.values()) if len(results) > 1 else results["loss"]

    def predict(self, x: Any, batch_size: int | None = None, verbose: int | str = "auto", steps: int | None = None) -> Any:
        """The outputs for all inputs; see `tf.keras.Model.predict`."""
        batches = Batches.of(x, batch_size=batch_size, shuffle=False, seed=0)
        self.build_for(batches)
        return evaluation.predict(self.network, self.weights, batches.once(steps))

    def _compiled(self) -> Compiled:
        if self.loss is None or self.optimizer is None:
            raise InputError(f"{self.name}: call compile with an optimizer and a loss first")
        return Compiled(self.optimizer, self.loss, tuple(self.metrics))

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
    """A metric of the model's own."""
    return metrics.get(identifier.get_config() if isinstance(identifier, metrics.Metric) else identifier)
