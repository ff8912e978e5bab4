"""The arguments of `compile`, arranged by the model's outputs, and a compiled model's description as data.

Forms and names of results are Keras's. A description has JSON types, for files and checkpoints.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from dtrain.errors import InputError, SpecError
from dtrain.learning import losses, metrics, optimizers
from dtrain.learning.core.configuration import to_data
from dtrain.learning.graphs.heads import Losses, OutputLoss, by_output
from dtrain.learning.graphs.passes import only
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Metric
from dtrain.learning.optimizers import Optimizer
from dtrain.training.architecture import Architecture


class CompiledOutput(msgspec.Struct, frozen=True):
    """One output of the model; `loss` is None if it is not trained.

    The model's loss is the sum of the losses times `loss_weight`. `metrics` count every example alike; sample
    weights apply to `weighted_metrics`.
    """

    name: str
    loss: Loss | None = None
    loss_weight: float = 1.0
    metrics: tuple[Metric, ...] = ()
    weighted_metrics: tuple[Metric, ...] = ()


class OutputMetric(msgspec.Struct, frozen=True):
    """A metric of one output, in its initial state; sample weights apply to it if it is `weighted`."""

    label: str
    output: int
    metric: Metric
    weighted: bool


class Compiled(msgspec.Struct, frozen=True, dict=True):
    """The optimizer, and every output in order."""

    optimizer: Optimizer
    outputs: tuple[CompiledOutput, ...]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        optimizer: Optimizer,
        loss: Any = None,
        metrics: Any = (),
        loss_weights: Any = None,
        weighted_metrics: Any = (),
    ) -> "Compiled":
        """Return the arguments of `compile`, for outputs of these names.

        Raises:
            InputError: an argument is a list of another length, or names an output that does not exist.
            SpecError: a name of a loss or metric is unknown, or two metrics of an output have the same.
        """
        is_data = isinstance(loss, Mapping) and "class_name" in loss
        parts = (
            [loss] * len(names) if is_data else by_output(loss, names, "losses"),
            by_output(loss_weights, names, "loss_weights"),
            _metrics_by_output(metrics, names),
            _metrics_by_output(weighted_metrics, names),
        )
        return cls(optimizer, tuple(_output(*each) for each in zip(names, *parts, strict=True)))

    @property
    def names(self) -> list[str]:
        return [output.name for output in self.outputs]

    @property
    def result_names(self) -> list[str]:
        of_outputs = [f"{each.name}_loss" for each in self.outputs if each.loss is not None]
        return [
            "loss",
            *(of_outputs if len(self.outputs) > 1 else ()),
            *(each.label for each in self.metrics()),
        ]

    @cached_property
    def losses(self) -> Losses | None:
        """Losses in the form that a network takes; None if no output has one."""
        found = [
            None if each.loss is None else OutputLoss(each.loss, each.loss_weight) for each in self.outputs
        ]
        return found if any(found) else None

    def label(self, output: str, name: str) -> str:
        """Return the name of an output's number, which begins with the output's if there are several."""
        return name if len(self.outputs) == 1 else f"{output}_{name}"

    def metrics(self) -> list[OutputMetric]:
        """Return copies of all metrics, as they are reported: output by output."""
        return [
            OutputMetric(self.label(output.name, str(metric.name)), index, metric.copy(), weighted)
            for index, output in enumerate(self.outputs)
            for of_output, weighted in ((output.metrics, False), (output.weighted_metrics, True))
            for metric in of_output
        ]

    def arguments(self) -> dict[str, Any]:
        """Return equal arguments of `compile`; lists with an item for each output where there are several."""
        by_name: dict[str, list[Any]] = {
            "loss": [output.loss for output in self.outputs],
            "loss_weights": [output.loss_weight for output in self.outputs],
            "metrics": [list(output.metrics) for output in self.outputs],
            "weighted_metrics": [list(output.weighted_metrics) for output in self.outputs],
        }
        return {"optimizer": self.optimizer} | {name: only(parts) for name, parts in by_name.items()}


def _output(
    name: str, loss: Any, loss_weight: Any, metrics: list[Any], weighted_metrics: list[Any]
) -> CompiledOutput:
    weight = 1.0 if loss_weight is None else float(loss_weight)
    return CompiledOutput(
        name, None if loss is None else losses.get(loss), weight, *_named(metrics, weighted_metrics)
    )


def _metrics_by_output(given: Any, names: Sequence[str]) -> list[list[Any]]:
    """Return each output's metrics: all of a flat list; or its own of a list of lists or a dict."""
    if isinstance(given, str | Metric):
        given = [given]
    nested = isinstance(given, Mapping) or any(isinstance(each, list | tuple) for each in given or ())
    parts = by_output(given, names, "metrics") if nested else [given] * len(names)
    return [[part] if isinstance(part, str | Metric) else list(part or ()) for part in parts]


def _named(plain: Sequence[Any], weighted: Sequence[Any]) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """Return one output's metrics with distinct names; a weighted one's gets ``weighted_`` if it must."""
    own = [each.copy() if isinstance(each, Metric) else metrics.get(each) for each in (*plain, *weighted)]
    taken: set[str] = set()
    for index, metric in enumerate(own):
        if index >= len(plain) and metric.name in taken:
            metric.name = f"weighted_{metric.name}"
        if metric.name in taken or metric.name == "loss":
            raise SpecError(f"compile: expected metrics of different names, found {metric.name!r} twice")
        taken.add(str(metric.name))
    return tuple(own[: len(plain)]), tuple(own[len(plain) :])


def describe(model: Architecture, compiled: Compiled | None) -> dict[str, Any]:
    """Return a model as JSON types, which `dtrain.training.saved_models` reads.

    A model without layers is an `InputError`, an argument that is no data a `SpecError`.
    """
    training = None
    if compiled is not None:
        training = to_data(compiled.arguments()) | {"optimizer": optimizers.serialize(compiled.optimizer)}
    # a model with a `call` is its traced graph
    name = "Model" if hasattr(model, "call") else type(model).__name__
    return {"class_name": name, "config": to_data(model.get_config()), "compiled": training}


def describe_if_data(model: Architecture, compiled: Compiled) -> dict[str, Any] | None:
    """Return the same, or None for a model that cannot be written as data; it trains all the same."""
    try:
        return describe(model, compiled)
    except (InputError, SpecError):
        return None
