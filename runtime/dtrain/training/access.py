"""The variables, ends, penalties and metrics of a model by Keras's names, and its description as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from dtrain.errors import InputError
from dtrain.learning.core.configuration import to_data
from dtrain.learning.core.results import result_of
from dtrain.strategies.replicas.variable import Variable


class WithAccess:
    """The part of every model that shows what it consists of; compare `tf.keras.Model`.

    Everything shows the trained values in every task in which `predict` uses them.
    """

    network: Any
    arrays: Any
    variable_specs: Any
    compiled: Any
    name: str

    @property
    def weights(self) -> list[Variable]:
        """Every variable, in the order of `get_weights`; they have `numpy()`, `assign`, `name` and `shape`.

        See `arrays` for the values by name.
        """
        by_name = self.in_replicas().by_name
        return [by_name[spec.name] for spec in self.variable_specs]

    variables = weights

    @property
    def trainable_variables(self) -> list[Variable]:
        """The trained variables in Keras's order, for loops of one's own; see `tf.keras.Model`.

        They have copies in every replica of the model's strategy, and are changed by
        `Optimizer.apply_gradients` or by their own `assign`.
        """
        by_name = self._variables_here()
        return [by_name[spec.name] for spec in self.variable_specs if spec.trainable]

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """The other variables, such as moving averages, in Keras's order; see `trainable_variables`."""
        by_name = self.in_replicas().by_name
        return [by_name[spec.name] for spec in self.variable_specs if not spec.trainable]

    trainable_weights = trainable_variables
    non_trainable_weights = non_trainable_variables

    @property
    def inputs(self) -> list[Any]:
        """The symbolic inputs, for models that use these layers too."""
        return list(self._ends()[0])

    @property
    def outputs(self) -> list[Any]:
        """The symbolic outputs."""
        return list(self._ends()[1])

    @property
    def losses(self) -> list[Any]:
        """The penalties of the weights' regularizers, a number each, of the values as they are.

        Those on outputs of layers are no part of it: they need a batch.
        """
        values = self.arrays
        return [result_of(float(penalty(values[name]))) for penalty, name in self.network.graph.regularized]

    @property
    def metrics(self) -> list[Any]:
        """The metrics given to `compile`, output by output; `fit` and `evaluate` count in copies of them."""
        outputs = () if self.compiled is None else self.compiled.outputs
        return [each for output in outputs for each in (*output.metrics, *output.weighted_metrics)]

    def reset_metrics(self) -> None:
        """Forget what the metrics of `metrics` have counted."""
        for each in self.metrics:
            each.reset_state()

    def to_json(self, **kwargs: Any) -> str:
        """Return class, name and layers as JSON, without values; `dt.models.model_from_json` reads it.

        Args:
            kwargs: of `json.dumps`, such as ``indent``.

        Raises:
            SpecError: a layer has an argument that is no data.
        """
        return json.dumps({"class_name": type(self).__name__, "config": to_data(self.get_config())}, **kwargs)

    def _variables_here(self) -> Mapping[str, Any]:
        """Return the trained variables as the calling line sees them."""
        return self.in_replicas().by_name  # type: ignore[no-any-return]

    def in_replicas(self) -> Any:
        """Return the variables as those of the strategy's replicas."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return name and layers as JSON types."""
        raise NotImplementedError

    def _ends(self) -> Any:
        raise InputError(f"{self.name}: has no layers, and so no symbolic inputs and outputs")
