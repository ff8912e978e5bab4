"""What survives every crash: the checkpoints of a simulated run, in memory.

`Disk` stands in the place of the functions of `dtrain.checkpoints`, so that the leader's drivers save and restore as
they do on a real one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from simulation.model import Model, State

from dtrain import checkpoints
from dtrain.checkpoints import CheckpointPath, Streamed
from dtrain.errors import CheckpointError
from dtrain.parameters.table import VALUES
from dtrain.roles.chief import driver, saver
from dtrain.state.fit_state import FitState
from dtrain.variables.lazy_table import row_blocks

Array = np.ndarray[Any, Any]
TABLE_PIECE_BYTES = 24
DENSE_PIECE_BYTES = 1024
FOLDER = Path("run") / "checkpoints"


@dataclass(frozen=True)
class Saved:
    """A checkpoint as the judge reads it.

    Attributes:
        generation: which call of `fit` it is of.
        version: the global step.
        states: what each server holds.
        final: whether training has ended.
        start: whether it begins a call of `fit`.
    """

    generation: int
    version: int
    states: Sequence[State]
    final: bool
    start: bool


class Written:
    """One checkpoint on the disk; open, it is what `dtrain.checkpoints.OpenCheckpoint` is."""

    def __init__(self, step: int, arrays: Mapping[str, Array], extra: bytes, final: bool, disk: "Disk"):
        self.step = step
        self.path = FOLDER / f"ckpt-{step}"
        self.final = final
        self.warning: str | None = None
        self._extra = extra
        self._disk = disk
        self._parts: dict[str, list[tuple[int, Array]]] = {}
        for key, array in arrays.items():
            name, _, row = key.rpartition("@")
            self._parts.setdefault(name or key, []).append((int(row) if name else 0, array))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part[0])

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *error: object) -> None: ...
    def close(self) -> None: ...

    def kept_as(self, path: Path) -> "Written":
        """Return the same checkpoint under another name."""
        kept = copy(self)
        kept.path = path
        return kept

    @cached_property
    def state(self) -> FitState:
        return FitState.of(msgspec.json.decode(self._extra))

    @property
    def arrays(self) -> Mapping[str, Any]:
        return self._parts

    @property
    def variables(self) -> Mapping[str, Any]:
        names = [name for name in self._parts if not checkpoints.is_slot(name)]
        return {name: SimpleNamespace(shape=self._shape(name)) for name in names}

    def _shape(self, name: str) -> tuple[int, ...]:
        first = self._parts[name][0][1]
        return (sum(len(rows) for _, rows in self._parts[name]), *first.shape[1:]) if first.shape else ()

    def read(self, name: str) -> Array:
        self._disk.is_read(self)
        parts = [array for _, array in self._parts[name]]
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    look_into = read

    def rows(self, name: str, start: int, stop: int) -> Array:
        parts = self._parts[name]
        for first, array in parts:
            if first <= start and stop <= first + len(array):
                return array[start - first : stop - first]
        return np.concatenate([array for _, array in parts])[start:stop]

    def on(self, model: Model) -> Saved:
        """Return what servers with this model's plan hold of it."""
        state = self.state
        states = [self._state(model, server) for server in range(model.plan.servers)]
        starts = self.step == state.lineage.first_step
        return Saved(state.generation, self.step, states, self.final, starts)

    def _state(self, model: Model, server: int) -> State:
        layout = model.plan.layout(server)

        def flat(group: Any, slot: str) -> Array:
            return np.concatenate([self._shard(model, shard, slot).reshape(-1) for shard in group.shards])

        trained = [group for group in layout.groups if group.trainable]
        tables = [
            {
                name: self._shard(model, shard, name).copy()
                for name in (VALUES, *(model.slots if shard.trainable else ()))
            }
            for shard in layout.tables
        ]
        return State(
            [flat(group, VALUES) for group in layout.groups],
            {name: [flat(group, name) for group in trained] for name in model.slots},
            tables,
        )

    def _shard(self, model: Model, shard: Any, slot: str) -> Array:
        name = model.plan.variables[shard.variable].name
        key = name if slot == VALUES else checkpoints.slot_key(name, slot)
        return self.rows(key, shard.row_start, shard.row_stop)


class Disk:
    """Keeps every checkpoint that later ones have not replaced.

    Attributes:
        written: hears of everything that is written.
        opened: hears which one is restored.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Written] = {}
        self._finals: dict[int, Written] = {}
        self._last_read: Written | None = None
        self.written: Callable[[Written], None] = lambda checkpoint: None
        self.restored: Callable[[Written], None] = lambda checkpoint: None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Stand in the place of the real one."""
        names = [
            "save",
            "rotate",
            "keep_final",
            "open_checkpoint",
            "list_checkpoints",
            "read_manifest",
            "final_of",
        ]
        before = {name: getattr(checkpoints, name) for name in names}
        try:
            for name in names:
                setattr(checkpoints, name, getattr(self, name))
            yield
        finally:
            for name, function in before.items():
                setattr(checkpoints, name, function)

    @contextmanager
    def in_pieces(self) -> Iterator[None]:
        """Let the leader send and read arrays in several pieces, tables by three rows."""
        modules = (saver, saver, driver)
        before = row_blocks

        def pieces(shape: tuple[int, ...], itemsize: int, usual: int = 0) -> Iterator[tuple[int, int]]:
            return before(shape, itemsize, TABLE_PIECE_BYTES if len(shape) > 1 else DENSE_PIECE_BYTES)

        try:
            for module in modules:
                module.row_blocks = pieces  # type: ignore[attr-defined]
            yield
        finally:
            for module in modules:
                module.row_blocks = before  # type: ignore[attr-defined]

    def is_read(self, checkpoint: Written) -> None:
        """Its arrays are read: it is restored."""
        if checkpoint is not self._last_read:
            self._last_read = checkpoint
            self.restored(checkpoint)

    def save(
        self,
        directory: Path,
        step: int,
        arrays: Mapping[str, Any],
        extra: Mapping[str, Any],
        *,
        final: bool,
        now: float,
    ) -> Path:
        whole = {}
        for key, each in arrays.items():
            if isinstance(each, Streamed):
                blocks = [np.asarray(block).reshape(-1) for block in each.blocks]
                whole[key] = np.concatenate(blocks).reshape(each.shape)
            else:
                whole[key] = each.copy()
        checkpoint = Written(step, whole, msgspec.json.encode(extra), final, self)
        self._kept = {before: kept for before, kept in self._kept.items() if before < step}
        self._kept[step] = self._last_read = checkpoint
        self.written(checkpoint)
        return checkpoint.path

    def list_checkpoints(self, directory: Path) -> list[CheckpointPath]:
        return [CheckpointPath(step, self._kept[step].path) for step in sorted(self._kept)]

    def open_checkpoint(self, path: Path) -> Written:
        self._last_read = None
        if not self._kept:
            raise CheckpointError(f"there is no checkpoint in {path}")
        newest = self._kept[max(self._kept)]
        everything = (*self._kept.values(), *self._finals.values())
        return next((kept for kept in everything if kept.path == path), newest)

    def rotate(self, directory: Path, **rules: Any) -> None:
        """All are kept."""

    def keep_final(self, directory: Path, fit: int) -> None:
        """The newest stays, beside those of later calls."""
        newest = self._kept[max(self._kept)]
        self._finals[fit] = newest.kept_as(FOLDER / f".final-{fit}-ckpt-{newest.step}")

    def final_of(self, directory: Path, fit: int) -> CheckpointPath | None:
        kept = self._finals.get(fit)
        return None if kept is None else CheckpointPath(kept.step, kept.path)

    def read_manifest(self, path: Path) -> Written:
        for kept in (*self._kept.values(), *self._finals.values()):
            if kept.path == path:
                return kept
        raise FileNotFoundError(path)
