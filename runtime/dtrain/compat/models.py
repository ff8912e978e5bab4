"""`dt.models`: models, their copies, and their descriptions as data, as in `tf.keras.models`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from dtrain.errors import InputError, SpecError
from dtrain.learning import layers
from dtrain.learning.core.configuration import NO_OBJECTS, REGISTERED, CustomObjects, from_data, to_data
from dtrain.saving.destination import FilePath
from dtrain.training.architecture import CLASSES
from dtrain.training.models import Model, Sequential
from dtrain.training.saved_models import load_model

__all__ = [
    "Model",
    "Sequential",
    "clone_model",
    "load_model",
    "model_from_config",
    "model_from_json",
    "save_model",
]


def save_model(
    model: Model, filepath: FilePath, overwrite: bool = True, save_format: str | None = None
) -> None:
    """Save a model as `Model.save` does.

    Args:
        model: the model.
        filepath: the file.
        overwrite: whether a file of that name is replaced.
        save_format: has no effect.
    """
    model.save(filepath, overwrite, save_format=save_format)


def model_from_config(config: Mapping[str, Any], custom_objects: CustomObjects | None = None) -> Any:
    """Return a new model of the layers that data describe, with first values of its own.

    Args:
        config: ``{"class_name", "config"}``, the latter of `Model.get_config`.
        custom_objects: classes of your own by name.

    Raises:
        SpecError: the data describe no model.
    """
    known = {**CLASSES, **REGISTERED, **(custom_objects or NO_OBJECTS)}
    name = config.get("class_name")
    if not isinstance(known.get(str(name)), type) or not isinstance(config.get("config"), Mapping):
        raise SpecError(
            f"model_from_config: expected the class and the config of a model; found the class {name!r}, "
            f"known are {', '.join(known)}"
        )
    return known[str(name)].from_config(config["config"], custom_objects or NO_OBJECTS)


def model_from_json(json_string: str, custom_objects: CustomObjects | None = None) -> Any:
    """Return a new model of the layers that `Model.to_json` described.

    Args:
        json_string: the description.
        custom_objects: classes of your own by name.

    Raises:
        SpecError: the text describes no model.
    """
    try:
        config = json.loads(json_string)
    except ValueError as error:
        raise SpecError(f"model_from_json: expected JSON of Model.to_json: {error}") from None
    return model_from_config(config if isinstance(config, dict) else {}, custom_objects)


def clone_model(
    model: Model, input_tensors: Any = None, clone_function: Callable[[Any], Any] | None = None
) -> Any:
    """Return a new model of equal layers, which shares no values with this one.

    First values follow from the run's seed and the variables' names, so they are those with which this model
    began; `set_weights(model.get_weights())` copies the present ones.

    Args:
        model: the model.
        input_tensors: results of `dt.Input`, to which the new model is applied; None: inputs of its own.
        clone_function: returns the new layer for each layer but inputs; it is described as data. None: an
            equal one.
    """
    if not isinstance(model, Model):
        raise InputError(f"clone_model: expected a model, found {type(model).__name__}")
    config = to_data(model.get_config())
    own = {type(each).__name__: type(each) for each in model.network.layers}
    if clone_function is not None:
        known = layers.classes()
        config["layers"] = [
            each
            if each["class_name"] == "InputLayer"
            else {**each, **to_data(clone_function(from_data(each, "layer", known, own)))}
            for each in config["layers"]
        ]
    kind: Any = next(cls for cls in type(model).__mro__ if cls in CLASSES.values())
    clone = kind.from_config(config, own)
    return clone if input_tensors is None else Model(input_tensors, clone(input_tensors))
