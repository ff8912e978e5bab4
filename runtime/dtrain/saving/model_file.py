"""Whole models: their architecture and compile arguments as data, their weights, their optimizer's state."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.errors import CheckpointDamagedError, CheckpointError, SpecError
from dtrain.runs.files import RunFiles
from dtrain.saving.archive import check_not_of_tensorflow, read_archive, write_archive
from dtrain.saving.destination import NAME_IN_FOLDER, FilePath, written
from dtrain.saving.model_folder import path_or_job_folder
from dtrain.strategies.interface import Strategy
from dtrain.types import Array


@dataclass(frozen=True)
class SavedModel:
    """A model without code.

    Attributes:
        description: class, arguments and layers of the model, and the arguments of `compile`; JSON types.
        weights: every variable by name.
        state: of the optimizer; None if it begins anew.
    """

    description: Mapping[str, Any]
    weights: Mapping[str, Array]
    state: OptimizerState | None = None


def write_model(
    path: FilePath | None, model: SavedModel, strategy: Strategy | None, *, overwrite: bool = True
) -> None:
    """Write a model; see `destination` for who writes, and `path_or_job_folder` for where without a path.

    Raises:
        CheckpointError: the file cannot be written.
        SpecError: the description holds what is not JSON, or there is no path.
    """
    path = path_or_job_folder(path, NAME_IN_FOLDER)
    arrays = dict(model.weights)
    description: dict[str, Any] = {"kind": "model", "model": model.description, "optimizer_step": None}
    if model.state is not None:
        description["optimizer_step"] = model.state.step
        for slot, by_variable in model.state.slots.items():
            arrays.update({checkpoints.slot_key(name, slot): array for name, array in by_variable.items()})
    try:
        text = json.dumps(description, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise SpecError(f"the model cannot be written as data: {error}") from None
    with written(strategy, path, overwrite) as place:
        write_archive(place, arrays, text, overwrite=overwrite)


def read_model(path: FilePath) -> SavedModel:
    """Read a file of `write_model`, the newest sound checkpoint of a run or of a folder, or one checkpoint.

    Raises:
        CheckpointError: there is none, it holds weights alone, or it cannot be read.
    """
    path = Path(path)
    check_not_of_tensorflow(path)
    return _from_checkpoint(path) if path.is_dir() else _from_file(path)


def _from_file(path: Path) -> SavedModel:
    archive = read_archive(path)
    try:
        text = msgspec.json.decode(archive.description or "{}")
        if text.get("kind") != "model":
            raise CheckpointError(
                f"{path} holds weights and no model; build the model and use its load_weights"
            )
        model = text["model"]
        step = text["optimizer_step"]
        if not isinstance(model, dict) or not isinstance(step, int | None):
            raise ValueError(f"expected a model and a number of steps, found {model!r:.80} and {step!r:.80}")
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointDamagedError(
            f"{path} cannot be used: its description is not one of a model: {error!r}"
        ) from None
    return _split(archive.arrays, model, step)


def _from_checkpoint(path: Path) -> SavedModel:
    folder = RunFiles(path).checkpoints
    with checkpoints.open_checkpoint(folder if folder.is_dir() else path) as checkpoint:
        state = checkpoint.state
        if state.model is None:
            raise CheckpointError(
                f"{checkpoint.path} holds weights and no model: it was made of functions, or of layers that "
                "are not data; "
                "build the model and use its load_weights"
            )
        arrays = {name: checkpoint.read(name) for name in checkpoint.arrays}
        return _split(arrays, state.model, checkpoint.step - state.lineage.origin)


def _split(arrays: Mapping[str, Array], description: Mapping[str, Any], step: int | None) -> SavedModel:
    weights = {name: array for name, array in arrays.items() if not checkpoints.is_slot(name)}
    slots: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        if checkpoints.is_slot(name):
            variable, slot = checkpoints.split_slot_key(name)
            slots.setdefault(slot, {})[variable] = array
    return SavedModel(description, weights, None if step is None else OptimizerState(step, slots))
