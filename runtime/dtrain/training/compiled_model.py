"""A model with the optimizer, losses and metrics that `compile` gives it. Names are Keras's."""

from collections.abc import Mapping
from typing import Any

from dtrain.checkpoints import OptimizerState
from dtrain.errors import InputError, OtherStrategyError
from dtrain.learning import optimizers
from dtrain.learning.core.results import result_of
from dtrain.learning.graphs.networks import Network
from dtrain.learning.optimizers import Optimizer
from dtrain.strategies.replicas.contexts import strategy_of_scope
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled
from dtrain.training.custom_loops import (
    Prepared,
    check_global_batch_size,
    leave_loop,
    prepared_losses,
    state_of_loop,
    value_and_gradients,
)
from dtrain.training.fits.fitting import OptimizerOwner
from dtrain.training.parts import Batch

MAX_PREPARED = 16
"""A program that makes a new loss function at each step does not fill memory."""


class CompiledModel(Architecture):
    """A network and how it is trained.

    Attributes:
        compiled: None before `compile`.
    """

    def __init__(self, network: Network | None = None, name: str | None = None) -> None:
        super().__init__(network, name)
        self.compiled: Compiled | None = None
        self._owner = OptimizerOwner()
        self._prepared: dict[int, Prepared] = {}

    def compile(
        self,
        optimizer: str | Mapping[str, Any] | optimizers.Optimizer = "rmsprop",
        loss: Any = None,
        metrics: Any = (),
        loss_weights: Any = None,
        weighted_metrics: Any = (),
        run_eagerly: bool | None = None,
        steps_per_execution: int | None = None,
        jit_compile: bool | None = None,
    ) -> None:
        """Set how the model is trained; see `tf.keras.Model.compile`.

        A model with several outputs takes one thing for all of them, a list with an item for each, or a dict
        by the names of their layers. The sum of the losses is trained; an output without a loss (None) is
        not.

        Args:
            loss: a name or a `Loss`.
            metrics: names, `Metric`s, or functions ``(y_true, y_pred) -> one number an example``; of every
                example alike.
            loss_weights: factors of the losses in their sum.
            weighted_metrics: those to which sample weights and class weights apply.
            run_eagerly, steps_per_execution, jit_compile: how TensorFlow runs a step; they have no effect
                here.

        Raises:
            SpecError: a name is unknown, or two metrics have the same.
            InputError: an argument is a list of another length, or a dict that names an output that does not
                exist.
            OtherStrategyError: the scope of another strategy than the model's is open.
        """
        has_layers = self.has_layers  # which says so if there was no super().__init__()
        opened = strategy_of_scope()
        if opened is not None and opened is not self.strategy:
            raise OtherStrategyError(
                f"{self.name}: compile in the scope of {opened!r}, but the model was made for "
                f"{self.strategy!r}; make the model in the same scope"
            )
        by_name = any(isinstance(each, Mapping) for each in (loss, metrics, loss_weights, weighted_metrics))
        names = self.network.output_names if has_layers or by_name else ["output"]
        self.compiled = Compiled.of(
            names, optimizers.get(optimizer), loss, metrics, loss_weights, weighted_metrics
        )
        self._owner = OptimizerOwner()
        self._prepared = {}

    @property
    def optimizer(self) -> optimizers.Optimizer | None:
        """The optimizer given to `compile`; its numbers may be changed."""
        return None if self.compiled is None else self.compiled.optimizer

    @property
    def loss(self) -> Any:
        """The loss given to `compile`; a list with one for each output where there are several."""
        return None if self.compiled is None else self.compiled.arguments()["loss"]

    @property
    def metrics_names(self) -> list[str]:
        """Names of the results of `evaluate`, in its order."""
        return [] if self.compiled is None else self.compiled.result_names

    def resume_optimizer(self, state: OptimizerState | None) -> None:
        """Let the next `fit` or loop begin with this state of the optimizer; None: with a new one."""
        self._owner = OptimizerOwner(state)
        if self.optimizer is not None:
            self.optimizer.iterations.assign(self._owner.updates)

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """The state of the compiled optimizer, in a loop of one's own or in `fit`, whichever was last.

        None: it has made no update.
        """
        return self._state_of_loop() or self._owner.state_in(self.strategy)

    def value_and_gradients(
        self,
        loss_fn: Any,
        x: Any,
        y: Any = None,
        global_batch_size: int | None = None,
        training: bool = True,
        sample_weight: Any = None,
        return_outputs: bool = False,
    ) -> Any:
        """Return a replica's share of the loss of a batch, and its gradients, in a loop of one's own.

        It takes the place of `tf.GradientTape`, as there is no automatic differentiation. The sums over all
        replicas, which `Optimizer.apply_gradients` makes, are those of the whole batch.

        Args:
            loss_fn: a name or a `Loss`; or a function ``(y_true, y_pred) -> (losses, gradients)`` of one loss
                an example and its gradient by the predictions (see `Loss.of_each`); a list or dict of them
                for several outputs. None: what `compile` was given.
            x: this replica's part of the batch; it may be empty.
            y: its targets.
            global_batch_size: the sum over examples is divided by it, as by
                `dt.nn.compute_average_loss`. By default the number of examples here times that of replicas;
                a loss with the reduction ``sum`` is then divided by nothing.
            training: whether dropout drops, and batches are normalized by themselves; moving averages then
                move.
            sample_weight: a weight for each example.
            return_outputs: whether to return the model's outputs too, for metrics.

        Returns: The loss (float32), with this replica's share of the penalties of regularizers; the gradients
            in the order of `trainable_variables`, new arrays, or `SparseRows` of embedding tables; and the
            outputs, if they are asked for.

        Raises:
            ContextError: it is called outside of the replicas of a strategy that has several.
            InputError: the data do not fit the model or the loss.
        """
        check_global_batch_size(global_batch_size)
        batch = Batch(x, y, sample_weight)
        with self._making:
            self.build(batch.input_shape)
            prepared = self._prepared.get(id(loss_fn))
            if prepared is None or prepared.given is not loss_fn:
                given = self._compiled().losses if loss_fn is None else loss_fn
                prepared = prepared_losses(self, given)._replace(given=loss_fn)
                if len(self._prepared) >= MAX_PREPARED:
                    self._prepared.clear()
                self._prepared[id(loss_fn)] = prepared
        found = value_and_gradients(self, prepared, batch, global_batch_size, training=training)
        loss, gradients, outputs = found
        return (result_of(loss), gradients, *([result_of(outputs)] if return_outputs else ()))

    def _owner_of_fit(self) -> OptimizerOwner:
        """Return the owner of the next `fit`, which goes on where a loop has left the optimizer."""
        state = self._state_of_loop()
        if state is not None:
            self.resume_optimizer(state)
            leave_loop(self._compiled().optimizer, self.trainable_variables)
        return self._owner

    def _state_of_loop(self) -> OptimizerState | None:
        if self.compiled is None or self._in_replicas is None:
            return None
        return state_of_loop(self.compiled.optimizer, self.trainable_variables)

    def _state_of(self, optimizer: Optimizer) -> OptimizerState | None:
        """Return how far the compiled optimizer has come in `fit` or in a file; None for others."""
        if self.compiled is None or optimizer is not self.compiled.optimizer:
            return None
        return self._owner.state_in(self.strategy)

    def _compiled(self) -> Compiled:
        if self.compiled is None:
            raise InputError(f"{self.name}: call compile with an optimizer and a loss first")
        return self.compiled
