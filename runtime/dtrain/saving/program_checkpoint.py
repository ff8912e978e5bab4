"""`Checkpoint`: models, variables and optimizers of a loop of one's own in one file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from dtrain.errors import CheckpointDamagedError, CheckpointError, InputError
from dtrain.learning.optimizers import Optimizer
from dtrain.saving.archive import read_archive, write_archive
from dtrain.saving.destination import FilePath
from dtrain.strategies.replicas.variables.applying import Application
from dtrain.strategies.replicas.variables.variable import Variable
from dtrain.types import Array

KIND = "checkpoint of a program"


class Checkpoint:
    """Objects of a program by names: models, `dt.Variable`s and optimizers. See `tf.train.Checkpoint`.

    ``dt.train.Checkpoint(model=model, optimizer=optimizer, seen=examples_seen)``. An optimizer is saved with
    its iterations and its memory of the variables of the other objects.

    Attributes:
        counters: further whole numbers, which are saved as well.
    """

    def __init__(self, **objects: Any) -> None:
        """Take the objects.

        Raises:
            InputError: one is no model, variable or optimizer.
        """
        self.counters: dict[str, int] = {"save_counter": 0}
        self._objects = objects
        for name, each in objects.items():
            if not (isinstance(each, Variable | Optimizer) or hasattr(each, "created_variables")):
                raise InputError(
                    f"Checkpoint: {name}: expected a model, a dt.Variable or an optimizer, found "
                    f"{type(each).__name__}"
                )

    def write(self, path: FilePath) -> None:
        """Write a file, or replace it, in one step.

        Raises:
            CheckpointError: it cannot be written.
        """
        arrays: dict[str, Array] = {}
        steps = {}
        for name, each in self._objects.items():
            if isinstance(each, Optimizer):
                steps[name] = int(each.iterations)
                for variable, slots in self._slots(each).items():
                    arrays |= {f"{name}/{slot}/{variable}": value for slot, value in slots.items()}
            elif isinstance(each, Variable):
                arrays[name] = np.asarray(each.read())
            else:
                arrays |= {f"{name}/{key}": np.asarray(value) for key, value in each.weights.items()}
        description = {"kind": KIND, "iterations": steps, "counters": self.counters}
        write_archive(Path(path), arrays, json.dumps(description))

    def read(self, path: FilePath) -> Self:
        """Give the objects the values of a file.

        Raises:
            CheckpointError: there is none, it is damaged, or it holds other objects.
        """
        archive = read_archive(Path(path))
        found = _described(archive.path, archive.description)
        for name, each in self._objects.items():
            if isinstance(each, Variable):
                each.assign(_one(archive.arrays, name, each.shape, path))
            elif not isinstance(each, Optimizer):
                specs = each.created_variables
                each.weights = {
                    spec.name: _one(archive.arrays, f"{name}/{spec.name}", spec.shape, path) for spec in specs
                }
        for name, each in self._objects.items():
            if isinstance(each, Optimizer):
                self._restore(name, each, archive.arrays, int(found["iterations"].get(name, 0)))
        self.counters.update({key: int(count) for key, count in found["counters"].items()})
        return self

    restore = read

    def managed_in(self, directory: FilePath) -> "CheckpointManager":
        """Return a manager that keeps the newest checkpoint in a folder."""
        return CheckpointManager(self, directory, max_to_keep=1)

    def _variables(self) -> dict[str, Variable]:
        """Return every variable that an optimizer may know, by its name in the file."""
        found: dict[str, Variable] = {}
        for name, each in self._objects.items():
            if isinstance(each, Variable):
                found[name] = each
            elif not isinstance(each, Optimizer):
                found |= {f"{name}/{variable.name}": variable for variable in each.trainable_variables}
        return found

    def _slots(self, optimizer: Optimizer) -> dict[str, Mapping[str, Array]]:
        slots = Application.of(optimizer).slots
        return {name: slots[variable][0] for name, variable in self._variables().items() if variable in slots}

    def _restore(self, name: str, optimizer: Optimizer, arrays: Mapping[str, Array], steps: int) -> None:
        kinds = optimizer.initial_slots(np.zeros(0))
        known = {
            variable: {slot: np.array(arrays[f"{name}/{slot}/{key}"]) for slot in kinds}
            for key, variable in self._variables().items()
            if all(f"{name}/{slot}/{key}" in arrays for slot in kinds)
        }
        Application.of(optimizer).take(known, steps)


class CheckpointManager:
    """The newest checkpoints of a program in a folder. See `tf.train.CheckpointManager`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: FilePath,
        max_to_keep: int | None = 5,
        checkpoint_name: str = "ckpt",
    ) -> None:
        """Make no file yet.

        Args:
            checkpoint: the objects.
            directory: made when it is needed. Two processes must not save in one folder.
            max_to_keep: how many files stay; None: all.
            checkpoint_name: what their names begin with.
        """
        self.checkpoint = checkpoint
        self.directory = Path(directory)
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name

    @property
    def checkpoints(self) -> list[Path]:
        """The files, the oldest first."""
        found = self.directory.glob(f"{self._name}-*")
        ends = {path: path.stem.removeprefix(f"{self._name}-") for path in found}
        numbered = {path: int(end) for path, end in ends.items() if end.isdecimal()}
        return sorted(numbered, key=numbered.__getitem__)

    @property
    def latest_checkpoint(self) -> Path | None:
        """The newest file; None: there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self, checkpoint_number: int | None = None) -> Path:
        """Write a file, and remove the oldest ones; return its path.

        Raises:
            CheckpointError: it cannot be written.
        """
        counters = self.checkpoint.counters
        counters["save_counter"] += 1
        number = counters["save_counter"] if checkpoint_number is None else checkpoint_number
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self._name}-{number}.safetensors"
        self.checkpoint.write(path)
        if self._max_to_keep is not None:
            for old in [each for each in self.checkpoints if each != path][: -self._max_to_keep + 1 or None]:
                old.unlink(missing_ok=True)
        return path

    def restore_or_initialize(self) -> Path | None:
        """Restore the newest file, if there is one; return its path.

        Raises:
            CheckpointError: it is damaged, or holds other objects.
        """
        path = self.latest_checkpoint
        if path is not None:
            self.checkpoint.read(path)
        return path


def latest_checkpoint(directory: FilePath, checkpoint_name: str = "ckpt") -> Path | None:
    """Return the newest file of a `CheckpointManager` in a folder; None: there is none."""
    return CheckpointManager(Checkpoint(), directory, checkpoint_name=checkpoint_name).latest_checkpoint


def _described(path: Path, description: str | None) -> dict[str, Any]:
    try:
        found = json.loads(description or "{}")
        if found.get("kind") != KIND:
            raise CheckpointError(f"{path} is no file of dt.train.Checkpoint; see dt.load_model for others")
        for part in ("iterations", "counters"):
            if not all(type(count) is int for count in found[part].values()):
                raise ValueError(f"{part} are no whole numbers")
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointDamagedError(f"{path} cannot be used: its description is wrong: {error!r}") from None
    return dict(found)


def _one(arrays: Mapping[str, Array], key: str, shape: tuple[int, ...], path: FilePath) -> Array:
    value = arrays.get(key)
    if value is None or value.shape != shape:
        found = "nothing" if value is None else f"shape {value.shape}"
        raise CheckpointError(f"{path}: {key}: expected shape {shape}, found {found}")
    return value
