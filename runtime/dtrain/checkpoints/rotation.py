"""The choice of the checkpoints that stay: the newest, one every so many hours, and those being read.

Where all of the newest have batches on some servers only, the newest one that is whole stays besides: other
servers can go on from it alone.

The rule of `keep_every_n_hours` is that of `tf.train.CheckpointManager`: it is decided when a checkpoint
leaves the newest ones. It stays for ever if it was written at least so many hours after the last one that
stayed (at first: after the first rotation).
"""

import json
from pathlib import Path

from dtrain.checkpoints.file_operations import DISK, FileOperations
from dtrain.checkpoints.folder import REMOVED, CheckpointPath, list_checkpoints, set_aside, sweep
from dtrain.checkpoints.locks import is_read
from dtrain.checkpoints.manifest import read_manifest
from dtrain.errors import CheckpointError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, read_regular

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
        directory: of checkpoints.
        keep: how many of the newest stay; None for all.
        keep_every_n_hours: of the others, those at least so far apart stay; None for none.
        now: seconds since the epoch.
        disk: the operations that write and remove.

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
    """Return the time at which a checkpoint was written; None if its manifest cannot be read."""
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
