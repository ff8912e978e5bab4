"""Loading of a model from a file or a checkpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.errors import CheckpointError, DtrainError, InputError, SpecError
from dtrain.learning import losses, metrics, optimizers
from dtrain.learning.core import constraints, initializers, regularizers
from dtrain.learning.core.configuration import REGISTERED, CustomObjects
from dtrain.saving.destination import FilePath, source
from dtrain.saving.model_files import SavedModel, fitted, read_model
from dtrain.strategies.choice import get_strategy
from dtrain.training import keras_files, models  # noqa: F401 - which adds its class
from dtrain.training.architecture import CLASSES
from dtrain.training.models import Model

ERROR_MAX = 1000
"""Characters of what is wrong: a file's words may be long."""
OBJECTS_MAX = 50_000
"""Objects in a model, of which a layer has up to five: 10,000 layers are built in about a second."""


def load_model(
    filepath: FilePath,
    custom_objects: CustomObjects | None = None,
    compile: bool = True,  # noqa: A002
) -> Model:
    """Return the model that `Model.save` wrote, or that a run has trained, in the present strategy.

    A task that does not lead reads its own copy of a file that it saved, else the leader's file. Compare
    `tf.keras.models.load_model`.

    Args:
        filepath: a file; or the folder of a run, of checkpoints, or of one checkpoint.
        custom_objects: classes of your own by name: layers, losses, metrics, ..., and the model's own class.
            Nothing is imported because a file names it.
        compile: whether it is compiled as it was, and its optimizer continues from its state.

    Raises:
        CheckpointError: the file is damaged, is none of a model, or names a class that is unknown.
    """
    path = Path(source(get_strategy(), filepath))
    try:
        if keras_files.is_of_keras(path):
            made: Model = keras_files.load_model(path, custom_objects or {}, compiled=compile)
            return made
        saved = read_model(path)
        return _model(saved, custom_objects or {}, str(filepath), compiled=compile)
    except CheckpointError:
        raise
    except DtrainError as error:
        raise CheckpointError(
            f"{filepath} cannot be used: {str(error)[:ERROR_MAX]}; classes of your own are handed in as "
            "custom_objects"
        ) from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(
            f"{filepath} cannot be used: its description of the model is malformed: {repr(error)[:ERROR_MAX]}"
        ) from error


def _model(saved: SavedModel, custom_objects: CustomObjects, where: str, *, compiled: bool) -> Model:
    description = saved.description
    if (found := _objects(description)) > OBJECTS_MAX:
        raise SpecError(
            f"it has {found} objects, expected at most {OBJECTS_MAX} layers and what they consist of"
        )
    name = description["class_name"]
    known = {**CLASSES, **REGISTERED, **custom_objects}
    if not isinstance(name, str) or not isinstance(known.get(name), type):
        raise SpecError(f"unknown model {name!r}; known are {', '.join(known)}")
    model: Model = known[name].from_config(description["config"], custom_objects)
    if not (model.built and model.network.output_shapes):
        raise InputError("the shapes of its variables are unknown")
    # else an unknown class would be noticed only in training
    for _, weight, _ in model.network.graph.weights():
        initializers.get(weight.initializer)
        regularizers.get(weight.regularizer)
        constraints.get(weight.constraint)
    model.arrays = fitted(dict(saved.weights), model.variable_specs, where)
    training = description.get("compiled")
    if compiled and training is not None:
        model.compile(
            optimizer=optimizers.from_config(training["optimizer"], custom_objects),
            loss=_each(training["loss"], lambda loss: losses.get(loss, custom_objects)),
            loss_weights=training.get("loss_weights"),
            metrics=_each(training["metrics"], lambda metric: metrics.get(metric, custom_objects)),
            weighted_metrics=_each(
                training["weighted_metrics"], lambda metric: metrics.get(metric, custom_objects)
            ),
        )
        model.resume_optimizer(_checked(saved.state, model))
    return model


def _objects(description: Any) -> int:
    """Return how many objects data describe, such as layers and their initializers."""
    count = 0
    remaining = [description]
    while remaining:
        data = remaining.pop()
        if isinstance(data, dict):
            count += "class_name" in data
            remaining += data.values()
        elif isinstance(data, list):
            remaining += data
    return count


def _each(data: Any, made: Callable[[Any], Any]) -> Any:
    if isinstance(data, list):
        return [_each(item, made) for item in data]
    return None if data is None else made(data)


def _checked(state: OptimizerState | None, model: Model) -> OptimizerState | None:
    """Return the optimizer's state, if it is one of this optimizer and these variables."""
    if state is None or model.optimizer is None:
        return None
    shapes = {spec.name: spec.shape for spec in model.variable_specs if spec.trainable}
    names = model.optimizer.initial_slots(np.zeros(0, np.float32))
    found: Mapping[str, Any] = {
        slot: {name: value.shape for name, value in by_name.items() if name in shapes}
        for slot, by_name in state.slots.items()
    }
    if shapes and (state.step < 0 or found != dict.fromkeys(names, shapes)):
        raise SpecError(
            f"its optimizer state: expected the slots {sorted(names)} of {len(shapes)} variables and a step "
            f"of at least 0, found {sorted(found)} and step {state.step}"
        )
    return state
