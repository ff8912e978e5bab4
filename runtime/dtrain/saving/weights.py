"""Files of weights: every variable of a model under its name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dtrain import checkpoints
from dtrain.errors import CheckpointError
from dtrain.process.plain_text import listed
from dtrain.saving.archive import check_not_of_tensorflow, read_archive, write_archive
from dtrain.saving.destination import FilePath, written
from dtrain.strategies.interface import Strategy
from dtrain.types import Array, Arrays
from dtrain.variables import VariableSpec


def save_weights(
    path: FilePath,
    variables: Sequence[VariableSpec],
    values: Arrays,
    strategy: Strategy,
    *,
    overwrite: bool = True,
) -> None:
    """Write all variables in the order of creation; raise a `CheckpointError` if that fails."""
    arrays = {spec.name: values[spec.name] for spec in variables}
    with written(strategy, path, overwrite) as place:
        write_archive(place, arrays, '{"kind":"weights"}', overwrite=overwrite)


def load_weights(
    path: FilePath, variables: Sequence[VariableSpec], *, by_name: bool = False, skip_mismatch: bool = False
) -> dict[str, Array]:
    """Return values for a model's variables, by the variables' names.

    Args:
        path: a file of weights or of a whole model, any safetensors file, or a checkpoint or a folder of
            checkpoints.
        by_name: take the arrays that have a variable's name, and leave the other variables as they are.
            Otherwise every variable must have a value: under its name or, where a file of dtrain has other
            names, in the order of creation.
        skip_mismatch: leave variables as they are whose shape is another in the file.

    Raises:
        CheckpointError: the file does not fit, or cannot be read.
    """
    found, in_order = stored_weights(Path(path))
    if (
        in_order
        and not by_name
        and len(found) == len(variables)
        and set(found) != {spec.name for spec in variables}
    ):
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
    """Return arrays of a file as values of a model's variables; see `load_weights`. Errors name `where`."""
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
    """Return every variable of a file, or of a folder's newest sound checkpoint; True if in creation order.

    An optimizer's slots are left out. Servers and other programs have orders of their own.
    """
    check_not_of_tensorflow(path)
    if path.is_dir():
        with checkpoints.open_checkpoint(path) as checkpoint:
            return {name: checkpoint.read(name) for name in checkpoint.variables}, False
    archive = read_archive(path)
    arrays = {key: array for key, array in archive.arrays.items() if not checkpoints.is_slot(key)}
    return arrays, archive.description is not None
