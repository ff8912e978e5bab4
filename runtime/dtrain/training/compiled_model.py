"""A model with the optimizer, losses and metrics that `compile` gives it. Names are Keras's."""

from collections.abc import Mapping
from typing import Any

from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.graphs.networks import Network
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled
from dtrain.training.fits.fitting import OptimizerOwner


class CompiledModel(Architecture):
    """A network and how it is trained.

    Attributes:
        compiled: None before `compile`.
    """

    def __init__(self, network: Network | None = None, name: str | None = None) -> None:
        super().__init__(network, name)
        self.compiled: Compiled | None = None
        self._owner = OptimizerOwner()

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
        """
        by_name = any(isinstance(each, Mapping) for each in (loss, metrics, loss_weights, weighted_metrics))
        names = self.network.output_names if self.has_layers or by_name else ["output"]
        self.compiled = Compiled.of(
            names, optimizers.get(optimizer), loss, metrics, loss_weights, weighted_metrics
        )
        self._owner = OptimizerOwner()

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

    def _compiled(self) -> Compiled:
        if self.compiled is None:
            raise InputError(f"{self.name}: call compile with an optimizer and a loss first")
        return self.compiled
