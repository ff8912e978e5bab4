"""A directory of checkpoints: its listing, and the names of those being written, replaced or removed.

ckpt-<step>                     a checkpoint
.tmp-ckpt-<step>-<n>            being written; after a crash, garbage
.replaced-ckpt-<step>-<n>       the former checkpoint of the step, valid after a crash if there is no new one
.removed-ckpt-<step>-<n>        garbage
.final-<fit>-ckpt-<step>        see `finals`
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtrain.checkpoints.file_operations import FileOperations
from dtrain.checkpoints.locks import is_read

WRITTEN = ".tmp-"
REPLACED = ".replaced-"
REMOVED = ".removed-"
_CHECKPOINT = re.compile(r"ckpt-(?P<step>0|[1-9]\d{0,17})")
_ASIDE = re.compile(r"(?P<state>\.tmp-|\.replaced-|\.removed-)ckpt-(?P<step>\d{1,18})-(?P<number>\d{1,18})")


@dataclass(frozen=True, order=True)
class CheckpointPath:
    """The path of a step's checkpoint, which exists but may be damaged: `open_checkpoint` finds out."""

    step: int
    path: Path


@dataclass(frozen=True)
class _Aside:
    state: str
    step: int
    number: int
    path: Path


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path for the checkpoint of a step."""
    return directory / f"ckpt-{step}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint's folder; None for another name."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match["step"]) if match else None


def list_checkpoints(directory: Path) -> list[CheckpointPath]:
    """Return the checkpoints in a directory, oldest (lowest step) first; none where there is no directory."""
    paths = {aside.step: aside.path for aside in _asides(directory) if aside.state == REPLACED}
    for path in _paths(directory):
        if (step := step_of(path)) is not None:
            paths[step] = path
    return sorted(CheckpointPath(step, path) for step, path in paths.items())


def latest(directory: Path) -> CheckpointPath | None:
    """Return the newest checkpoint in a directory; None if there is none."""
    return next(reversed(list_checkpoints(directory)), None)


def _paths(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _asides(directory: Path) -> list[_Aside]:
    """Return everything that is no checkpoint any more, or not yet; the newest last."""
    found = [(_ASIDE.fullmatch(path.name), path) for path in _paths(directory)]
    asides = [
        _Aside(match["state"], int(match["step"]), int(match["number"]), path)
        for match, path in found
        if match
    ]
    return sorted(asides, key=lambda aside: aside.number)


def free_name(directory: Path, state: str, step: int) -> Path:
    """Return an unused name for something aside."""
    number = max((aside.number for aside in _asides(directory)), default=0) + 1
    return directory / f"{state}ckpt-{step}-{number}"


def set_aside(checkpoint: CheckpointPath, state: str, disk: FileOperations) -> None:
    """Take a checkpoint out of the listing in one move; open readers read on."""
    disk.rename(checkpoint.path, free_name(checkpoint.path.parent, state, checkpoint.step))


def sweep(directory: Path, disk: FileOperations) -> None:
    """Finish what a crash interrupted: give a replaced checkpoint its name back, remove unread garbage."""
    for checkpoint in list_checkpoints(directory):
        if checkpoint.path.name.startswith(REPLACED):
            disk.rename(checkpoint.path, checkpoint_path(directory, checkpoint.step))
    garbage = [aside.path for aside in _asides(directory) if not is_read(aside.path)]
    if garbage:
        # else a crash could undo the move that made it garbage, and not its removal
        disk.sync_directory(directory)
    for path in garbage:
        disk.remove(path)


def readable(directory: Path) -> Iterator[CheckpointPath]:
    """Yield the checkpoints in a directory, newest first, looked up anew after each, as some may vanish."""
    seen: set[int] = set()
    while remaining := [found for found in list_checkpoints(directory) if found.step not in seen]:
        seen.add(remaining[-1].step)
        yield remaining[-1]
