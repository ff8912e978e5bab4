"""`Checkpoint`: models, variables and optimizers of a loop of one's own in one file."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from dtrain.errors import CheckpointDamagedError, CheckpointError, InputError
from dtrain.learning.optimizers import Optimizer
from dtrain.saving.archive import is_archive, read_archive, write_archive
from dtrain.saving.destination import FilePath
from dtrain.strategies.replicas.applying import ReplicaApplication
from dtrain.strategies.replicas.variable import Variable
from dtrain.types import Array

KIND = "checkpoint of a program"
SAVES = "save_counter"
"""The counter of files that were saved with a number."""
ENDING = ".safetensors"


class Checkpoint:
    """Objects of a program by names: models, `dt.Variable`s and optimizers. See `tf.train.Checkpoint`.

    ``dt.train.Checkpoint(model=model, optimizer=optimizer, seen=examples_seen)``. An optimizer is saved with
    its iterations and its memory of the variables of the other objects.

    Attributes:
        objects: models, variables and optimizers by names.
        counters: further whole numbers, which are saved as well.
    """

    def __init__(self, **objects: Any) -> None:
        """Take the objects.

        Raises:
            InputError: one is no model, variable or optimizer.
        """
        self.counters: dict[str, int] = {SAVES: 0}
        self._objects = objects
        for name, each in objects.items():
            if not (isinstance(each, Variable | Optimizer) or hasattr(each, "created_variables")):
                raise InputError(
                    f"Checkpoint: {name}: expected a model, a dt.Variable or an optimizer, found "
                    f"{type(each).__name__}"
                )

    def save(self, file_prefix: FilePath) -> Path:
        """Write a file whose name is ``file_prefix`` and a number that counts up; return its path.

        Raises:
            CheckpointError: it cannot be written.
        """
        self.counters[SAVES] += 1
        return self.write(f"{file_prefix}-{self.counters[SAVES]}{ENDING}")

    def write(self, path: FilePath) -> Path:
        """Write a file, or replace it, in one step; return its path.

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
                arrays |= {f"{name}/{key}": np.asarray(value) for key, value in each.arrays.items()}
        description = {"kind": KIND, "iterations": steps, "counters": self.counters}
        write_archive(Path(path), arrays, json.dumps(description))
        return Path(path)

    def read(self, path: FilePath) -> Self:
        """Give the objects the values of a file; a model that is not built takes its own when it is.

        Raises:
            CheckpointError: there is none, it is damaged, or it holds other objects.
        """
        archive = read_archive(Path(path))
        found = _described(archive.path, archive.description)
        steps = {name: int(count) for name, count in found["iterations"].items()}
        models = {}
        for name, each in self._objects.items():
            if isinstance(each, Variable):
                each.assign(_one(archive.arrays, name, each.shape, path))
            elif isinstance(each, Optimizer):
                self._restore(name, each, archive.arrays, steps.get(name, 0))
            else:
                models[name] = each
        for name, each in models.items():
            each.once_built(partial(self._restore_model, name, each, archive.arrays, steps, path))
        self.counters.update({key: int(count) for key, count in found["counters"].items()})
        return self

    def restore(self, save_path: FilePath | None) -> "LoadStatus":
        """Give the objects the values of a file; None, of a program that has saved nothing yet: do nothing.

        Raises:
            CheckpointError: see `read`.
        """
        if save_path is not None:
            self.read(save_path)
        return LoadStatus()

    def managed_in(self, directory: FilePath) -> "CheckpointManager":
        """Return a manager that keeps the newest checkpoint in a folder."""
        return CheckpointManager(self, directory, max_to_keep=1)

    def _variables(self) -> dict[str, Variable]:
        """Return every variable that an optimizer may know, by its name in the file."""
        found: dict[str, Variable] = {}
        for name, each in self._objects.items():
            if isinstance(each, Variable):
                found[name] = each
            elif not isinstance(each, Optimizer) and each.built:
                found |= {f"{name}/{variable.name}": variable for variable in each.trainable_variables}
        return found

    def _slots(self, optimizer: Optimizer) -> dict[str, Mapping[str, Array]]:
        """Return what an optimizer knows of each variable, in a loop of one's own or else in `fit`."""
        application = ReplicaApplication.of(optimizer)
        known = {name: application.known_slots(variable) for name, variable in self._variables().items()}
        return {name: slots for name, slots in known.items() if slots is not None}

    def _restore_model(
        self,
        name: str,
        model: Any,
        arrays: Mapping[str, Array],
        steps: Mapping[str, int],
        path: FilePath,
    ) -> None:
        model.arrays = {
            spec.name: _one(arrays, f"{name}/{spec.name}", spec.shape, path)
            for spec in model.created_variables
        }
        for optimizer, each in self._objects.items():
            if isinstance(each, Optimizer):
                self._restore(optimizer, each, arrays, steps.get(optimizer, 0))

    def _restore(self, name: str, optimizer: Optimizer, arrays: Mapping[str, Array], steps: int) -> None:
        kinds = optimizer.initial_slots(np.zeros(0))
        known = {
            variable: {slot: np.array(arrays[f"{name}/{slot}/{key}"]) for slot in kinds}
            for key, variable in self._variables().items()
            if all(f"{name}/{slot}/{key}" in arrays for slot in kinds)
        }
        ReplicaApplication.of(optimizer).restore(known, steps)


class LoadStatus:
    """The answer of `Checkpoint.restore`: every object has its values, or the call has raised already."""

    def assert_consumed(self) -> Self:
        return self

    assert_existing_objects_matched = assert_consumed
    assert_nontrivial_match = assert_consumed
    expect_partial = assert_consumed


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

        Raises:
            InputError: it is no checkpoint, or no file would stay.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InputError(
                f"CheckpointManager: expected a dt.train.Checkpoint, found {type(checkpoint).__name__}"
            )
        if max_to_keep is not None and not (isinstance(max_to_keep, int) and max_to_keep >= 1):
            raise InputError(
                "CheckpointManager: max_to_keep: expected a whole number of at least 1, or None for all "
                f"files, found {max_to_keep!r}"
            )
        self.checkpoint = checkpoint
        self.directory = Path(directory)
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name

    @property
    def checkpoints(self) -> list[Path]:
        """The files, the oldest first."""
        return [path for name, path in _numbered(self.directory) if name == self._name]

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
        counters[SAVES] += 1
        number = counters[SAVES] if checkpoint_number is None else checkpoint_number
        path = self.checkpoint.write(self.directory / f"{self._name}-{number}{ENDING}")
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


def latest_checkpoint(directory: FilePath, checkpoint_name: str | None = None) -> Path | None:
    """Return the newest file of a checkpoint, of weights or of a model in a folder; None: there is none.

    These are written by `CheckpointManager`, `Checkpoint.save`, `ModelCheckpoint` and `save_weights`.

    Args:
        directory: the folder.
        checkpoint_name: of a `CheckpointManager`; default: whichever file was written last.
    """
    numbered = _numbered(Path(directory))
    newest = dict(numbered)
    if checkpoint_name is not None:
        return newest.get(checkpoint_name)
    known = {path for _, path in numbered}
    others = (path for path in Path(directory).glob("[!.]*") if path not in known and is_archive(path))
    return max((*newest.values(), *others), key=lambda path: path.stat().st_mtime_ns, default=None)


def _numbered(folder: Path) -> list[tuple[str, Path]]:
    """Return the files of a folder whose names end in a number, in its order, with the names before it."""
    split = [(*path.stem.rpartition("-"), path) for path in folder.glob(f"*-*{ENDING}")]
    numbered = [(int(number), name, path) for name, _, number, path in split if number.isdecimal()]
    return [(name, path) for _, name, path in sorted(numbered)]


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
