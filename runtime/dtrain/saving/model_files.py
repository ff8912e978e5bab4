"""Files of models: whole ones, their weights alone, and networks in the ONNX format.

A whole model is its architecture and compile arguments as data, its weights, and its optimizer's state. The
package onnx is an extra, and is loaded only when a model is exported.
"""

import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.errors import CheckpointDamagedError, CheckpointError, DtrainError, SpecError
from dtrain.formats.remote_files import is_url
from dtrain.learning.graphs.graph import Graph
from dtrain.process.engines import VERTEX_MODEL
from dtrain.process.plain_text import listed
from dtrain.runs.files import RunFiles
from dtrain.saving.archive import check_not_of_tensorflow, read_archive, write_archive
from dtrain.saving.destination import NAME_IN_FOLDER, FilePath, write_whole, written
from dtrain.strategies.interface import Strategy
from dtrain.types import Array, Arrays
from dtrain.variables import VariableSpec


class SavedModel(msgspec.Struct, frozen=True):
    """A model without code; an optimizer whose `state` is None begins anew.

    Attributes:
        description: class, arguments and layers of the model, and the arguments of `compile`; JSON types.
    """

    description: Mapping[str, Any]
    weights: Mapping[str, Array]
    state: OptimizerState | None = None


def write_model(
    path: FilePath | None, model: SavedModel, strategy: Strategy | None, *, overwrite: bool = True
) -> None:
    """Write a model as `written` says, or without a path as `path_or_job_folder` says.

    A description that holds what is not JSON is a `SpecError`.
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
    with written(strategy, path, overwrite) as file:
        write_archive(file, arrays, text, overwrite=overwrite)


def read_model(path: FilePath) -> SavedModel:
    """Read a file of `write_model`, the newest sound checkpoint of a run or of a folder, or one checkpoint.

    Each that is not there, or that holds weights alone, is a `CheckpointError`.
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


def save_weights(
    path: FilePath,
    variables: Sequence[VariableSpec],
    values: Arrays,
    strategy: Strategy,
    *,
    overwrite: bool = True,
) -> None:
    arrays = {spec.name: values[spec.name] for spec in variables}
    with written(strategy, path, overwrite) as file:
        write_archive(file, arrays, '{"kind":"weights"}', overwrite=overwrite)


def load_weights(
    path: FilePath, variables: Sequence[VariableSpec], *, by_name: bool = False, skip_mismatch: bool = False
) -> dict[str, Array]:
    """Return values for a model's variables, by the variables' names.

    Args:
        path: any safetensors file, a checkpoint, or a folder of checkpoints.
        by_name: skip variables of whose name there is no array. Otherwise every variable must have a value:
            under its name or, where a file of dtrain has other names, in the order of creation.
        skip_mismatch: skip variables whose shape is another in the file.
    """
    found, in_order = stored_weights(Path(path))
    other_names = set(found) != {spec.name for spec in variables}
    if in_order and not by_name and len(found) == len(variables) and other_names:
        found = {spec.name: value for spec, value in zip(variables, found.values(), strict=True)}
    return fitted(found, variables, str(path), by_name=by_name, skip_mismatch=skip_mismatch)


def fitted(
    found: Arrays,
    variables: Sequence[VariableSpec],
    where: str,
    *,
    by_name: bool = False,
    skip_mismatch: bool = False,
) -> dict[str, Array]:
    """Check arrays of a file as `load_weights` does; errors name `where`."""
    names = [spec.name for spec in variables]
    if not by_name and set(found) != set(names):
        missing = [name for name in names if name not in found]
        surplus = [name for name in found if name not in names]
        raise CheckpointError(
            f"{where} does not fit this model: expected {len(names)} variables, found {len(found)} "
            f"(missing: {listed(missing)}; unknown: {listed(surplus)}); by_name=True takes those that "
            "have the same name"
        )
    values = {}
    for spec in variables:
        value = found.get(spec.name)
        if value is None or (skip_mismatch and value.shape != spec.shape):
            continue
        if value.shape != spec.shape or not np.can_cast(value.dtype, spec.dtype, "same_kind"):
            raise CheckpointError(
                f"{where} does not fit this model: {spec.name} is {spec.dtype}{list(spec.shape)} here "
                f"and {value.dtype}{list(value.shape)} there"
            )
        values[spec.name] = value.astype(spec.dtype, copy=False)
    return values


def stored_weights(path: Path) -> tuple[dict[str, Array], bool]:
    """Return every variable of a file or checkpoint; True if they are in the order of creation.

    Servers and other programs have orders of their own.
    """
    check_not_of_tensorflow(path)
    if path.is_dir():
        with checkpoints.open_checkpoint(path) as checkpoint:
            return {name: checkpoint.read(name) for name in checkpoint.variables}, False
    archive = read_archive(path)
    arrays = {key: array for key, array in archive.arrays.items() if not checkpoints.is_slot(key)}
    return arrays, archive.description is not None


SUFFIX = ".onnx"
_NAME = "model.onnx"
# The limit of a protobuf message.
MAX_BYTES = (1 << 31) - 1


def write_onnx(
    path: FilePath | None,
    graph: Graph,
    weights: Arrays,
    name: str,
    strategy: Strategy,
    format: str = "onnx",  # noqa: A002 - Keras's name
) -> None:
    """Write a network; without a path as `path_or_job_folder` says.

    Raises:
        SpecError: ONNX has no form of a layer, or the format or the file's name is another's.
        DtrainError: the package onnx is not installed, or the model is larger than its files can be.
    """
    path = path_or_job_folder(path, _NAME)
    if format != "onnx" or Path(path).suffix != SUFFIX:
        raise SpecError(
            f"export: expected a name that ends in {SUFFIX}, the only format there is; found {path} as "
            f"{format}"
        )
    total = sum(array.dtype.itemsize * prod(array.shape) for array in weights.values())
    if total > MAX_BYTES:
        raise DtrainError(
            f"export: the weights have {total:,} bytes; an ONNX file holds at most {MAX_BYTES:,}"
        )
    try:
        from dtrain.saving.onnx_export import onnx_model
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise DtrainError(
            "export needs the package onnx: `pip install -e '.[onnx]'` in dtrain's clone"
        ) from None
    content = onnx_model(graph, weights, name).SerializeToString()
    with written(strategy, path) as file:
        write_whole(file, [content])


def path_or_job_folder(path: FilePath | None, name: str) -> FilePath:
    """Return `path`, or `name` in the folder that AIP_MODEL_DIR of Vertex AI names, or raise `SpecError`."""
    if path is not None:
        return path
    if not (folder := os.environ.get(VERTEX_MODEL)):
        raise SpecError(
            f"no path to save the model at: expected one, or {VERTEX_MODEL} in the environment, which a job "
            "of Vertex AI with a base output directory has"
        )
    if is_url(folder):
        return f"{folder.rstrip('/')}/{'' if name == NAME_IN_FOLDER else name}"
    return Path(folder, name)
