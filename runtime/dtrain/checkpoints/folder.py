"""A directory of checkpoints: its listing, the locks of readers, and the choice of those that stay.

ckpt-<step>                     a checkpoint
.tmp-ckpt-<step>-<n>            being written; after a crash, garbage
.replaced-ckpt-<step>-<n>       the former checkpoint of the step, valid after a crash if there is no new one
.removed-ckpt-<step>-<n>        garbage
.final-<fit>-ckpt-<step>        see `keep_final`

Where all of the newest have batches on some servers only, the newest one that is whole stays besides: other
servers can go on from it alone.

The rule of `keep_every_n_hours` is that of `tf.train.CheckpointManager`: it is decided when a checkpoint
leaves the newest ones. It stays for ever if it was written at least so many hours after the last one that
stayed (at first: after the first rotation).

The first checkpoint of the next `fit` is of the same step and takes the final one's place.
`.final-<fit>-ckpt-<step>` keeps it for an evaluator that comes late, and for a leader that is started again
and skips the call.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from dtrain.checkpoints.manifest import MANIFEST, read_manifest
from dtrain.errors import CheckpointError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, open_regular, read_regular

LOCK_WAIT_S = 10.0
"""`is_read` holds its lock for less than a millisecond; a longer one is another program's."""
RETRY_S = 0.01


def open_for_reading(checkpoint: Path, wait_s: float = LOCK_WAIT_S) -> int:
    """Open a checkpoint's manifest, with a shared lock on it; the caller closes the descriptor.

    Raises:
        OSError: it is not there, or is no regular file.
        CheckpointError: another process holds an exclusive lock on it and does not release it.
    """
    descriptor = open_regular(checkpoint / MANIFEST, follow=False)
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(RETRY_S)
                continue
            os.close(descriptor)
            raise CheckpointError(
                f"{checkpoint / MANIFEST} has been locked by another process for {wait_s:g} s; end that "
                "process (`lslocks` names it), or copy the checkpoint"
            ) from None


def is_read(checkpoint: Path) -> bool:
    try:
        descriptor = open_regular(checkpoint / MANIFEST, follow=False)
    except OSError:  # not there, or nothing that a reader would take
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class FileOperations:
    """The operations of the operating system, each either done or an OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, unless they exist, and sync their names to the disk."""
        if not path.parent.exists():
            self.make_directory(path.parent)
            self.sync_directory(path.parent.parent)
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        return open(path, "xb", buffering=0)

    def write(self, file: BinaryIO, data: memoryview) -> None:
        while data:
            data = data[file.write(data) :]

    def sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file one more name; copy and sync it where the file system has no such links."""
        try:
            os.link(source, target)
        except OSError:
            with open(source, "rb") as read, self.create(target) as file:
                while block := read.read(1 << 20):
                    self.write(file, memoryview(block))
                self.sync(file)

    def rename(self, source: Path, target: Path) -> None:
        """Rename in one move; a file replaces the one of that name, a directory needs a free name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        shutil.rmtree(path)


DISK = FileOperations()


WRITTEN = ".tmp-"
REPLACED = ".replaced-"
REMOVED = ".removed-"
_CHECKPOINT = re.compile(r"ckpt-(?P<step>0|[1-9]\d{0,17})")
_ASIDE = re.compile(r"(?P<state>\.tmp-|\.replaced-|\.removed-)ckpt-(?P<step>\d{1,18})-(?P<number>\d{1,18})")


class CheckpointPath(msgspec.Struct, frozen=True, order=True):
    """The path of a step's checkpoint, which exists but may be damaged: `open_checkpoint` finds out."""

    step: int
    path: Path


class _Aside(msgspec.Struct, frozen=True):
    state: str
    step: int
    number: int
    path: Path


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step}"


def step_of(path: Path) -> int | None:
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


STATE = "rotation.json"


def rotate(
    directory: Path,
    *,
    keep: int | None,
    keep_every_n_hours: float | None = None,
    now: float,
    disk: FileOperations = DISK,
) -> None:
    """Remove checkpoints that need not stay. One that is being read is left for the next time.

    Args:
        keep: how many of the newest stay; None for all.
        keep_every_n_hours: of the others, those at least so far apart stay; None for none.
        now: seconds since the epoch.

    Raises:
        CheckpointError: the disk is failing.
    """
    if keep is None:
        return
    try:
        there = list_checkpoints(directory)
        last_s, preserved = _read_state(directory, now)
        preserved &= {found.step for found in there}
        candidates = [found for found in there if found.step not in preserved]
        leaving = candidates[: max(0, len(candidates) - keep)]
        whole = next(filter(_is_whole, reversed(candidates)), None)
        leaving = [found for found in leaving if found != whole]
        if keep_every_n_hours is not None:
            for checkpoint in leaving:
                written_s = _written_s(checkpoint)
                if written_s is not None and written_s - keep_every_n_hours * 3600 >= last_s:
                    last_s = written_s
                    preserved.add(checkpoint.step)
            _write_state(directory, last_s, preserved, disk)
        for checkpoint in leaving:
            if checkpoint.step not in preserved and not is_read(checkpoint.path):
                set_aside(checkpoint, REMOVED, disk)
        sweep(directory, disk)
    except OSError as error:
        raise CheckpointError(
            f"cannot remove old checkpoints in {directory}: {error.strerror or error}"
        ) from error


def _is_whole(checkpoint: CheckpointPath) -> bool:
    """Return whether all servers of a checkpoint contain the same, so that any others can go on from it."""
    try:
        return not read_manifest(checkpoint.path).state.contents
    except (OSError, CheckpointError):
        return False


def _written_s(checkpoint: CheckpointPath) -> float | None:
    try:
        return read_manifest(checkpoint.path).written_s
    except (OSError, CheckpointError):
        return None


def _read_state(directory: Path, now: float) -> tuple[float, set[int]]:
    """Return the time of the last checkpoint that stays for ever, and the steps of all such."""
    try:
        state = json.loads(read_regular(directory / STATE, JSON_BYTES_MAX))
        # A clock that was set back must not keep checkpoints from staying.
        return min(float(state["last_preserved_s"]), now), {int(step) for step in state["preserved"]}
    except (FileNotFoundError, NotADirectoryError):
        return now - 1, set()
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{directory / STATE} is damaged ({str(error)[:200]}); remove it; checkpoints of "
            "keep_every_n_hours may then be deleted"
        ) from None


def _write_state(directory: Path, last_s: float, preserved: set[int], disk: FileOperations) -> None:
    aside = directory / f".{STATE}"
    aside.unlink(missing_ok=True)
    with disk.create(aside) as file:
        state = {"last_preserved_s": last_s, "preserved": sorted(preserved)}
        disk.write(file, memoryview(json.dumps(state).encode()))
        disk.sync(file)
    disk.rename(aside, directory / STATE)
    disk.sync_directory(directory)


KEPT = 5
"""A loop of many short calls, such as `train_on_batch`, must not fill the disk."""
_FINAL = re.compile(r"\.final-(?P<fit>\d{1,18})-ckpt-(?P<step>\d{1,18})")


def keep_final(directory: Path, fit: int, disk: FileOperations = DISK) -> None:
    """Keep the newest checkpoint of a directory as the last one of this `fit`, and the newest earlier ones.

    After a crash it is kept whole, or not at all. A disk that is full or fails is a `CheckpointError`.
    """
    newest = latest(directory)
    if newest is None:
        return
    kept = directory / f".final-{fit}-ckpt-{newest.step}"
    try:
        aside = free_name(directory, WRITTEN, newest.step)
        disk.make_directory(aside)
        for file in sorted(newest.path.iterdir()):
            disk.link(file, aside / file.name)
        disk.sync_directory(aside)
        with contextlib.suppress(FileNotFoundError):
            disk.remove(kept)
        disk.rename(aside, kept)
        disk.sync_directory(directory)
        for _, earlier in sorted(_kept(directory))[:-KEPT]:
            if not is_read(earlier.path):
                disk.remove(earlier.path)
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {newest.path} for a late evaluator: {error.strerror or error}"
        ) from error


def final_of(directory: Path, fit: int) -> CheckpointPath | None:
    return dict(_kept(directory)).get(fit)


def _kept(directory: Path) -> list[tuple[int, CheckpointPath]]:
    found = [(_FINAL.fullmatch(path.name), path) for path in directory.glob(".final-*")]
    return [(int(match["fit"]), CheckpointPath(int(match["step"]), path)) for match, path in found if match]
