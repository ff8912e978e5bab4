"""The description of a model as JSON types, for files and checkpoints."""

from typing import Any

from dtrain.errors import InputError, SpecError
from dtrain.learning import optimizers
from dtrain.learning.core.configuration import to_data
from dtrain.training.architecture import Architecture
from dtrain.training.compiled import Compiled


def describe(model: Architecture, compiled: Compiled | None) -> dict[str, Any]:
    """Return a model as JSON types, which `dtrain.training.saved_models` reads.

    Raises:
        InputError: it has no layers.
        SpecError: an argument of a layer, loss, metric or the optimizer is no data.
    """
    training = None
    if compiled is not None:
        training = to_data(compiled.arguments()) | {"optimizer": optimizers.serialize(compiled.optimizer)}
    return {"class_name": type(model).__name__, "config": to_data(model.get_config()), "compiled": training}


def describe_if_data(model: Architecture, compiled: Compiled) -> dict[str, Any] | None:
    """Return the same, or None for a model that cannot be written as data; it trains all the same."""
    try:
        return describe(model, compiled)
    except (InputError, SpecError):
        return None
