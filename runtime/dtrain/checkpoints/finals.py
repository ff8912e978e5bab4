"""The last checkpoints of calls of `fit` that have ended, beside those of the one under way.

The first checkpoint of the next `fit` is of the same step and takes the final one's place.
`.final-<fit>-ckpt-<step>` keeps it for an evaluator that comes late, and for a leader that is started again
and skips the call.
"""

import contextlib
import re
from pathlib import Path

from dtrain.checkpoints.file_operations import DISK, FileOperations
from dtrain.checkpoints.folder import WRITTEN, CheckpointPath, free_name, latest
from dtrain.checkpoints.locks import is_read
from dtrain.errors import CheckpointError

KEPT = 5
"""A loop of many short calls, such as `train_on_batch`, must not fill the disk."""
_FINAL = re.compile(r"\.final-(?P<fit>\d{1,18})-ckpt-(?P<step>\d{1,18})")


def keep_final(directory: Path, fit: int, disk: FileOperations = DISK) -> None:
    """Keep the newest checkpoint of a directory as the last one of this `fit`, and the newest earlier ones.

    After a crash it is kept whole, or not at all.

    Raises:
        CheckpointError: the disk is full or failing.
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
    """Return the last checkpoint of a `fit` that has ended; None if none was kept."""
    return dict(_kept(directory)).get(fit)


def _kept(directory: Path) -> list[tuple[int, CheckpointPath]]:
    found = [(_FINAL.fullmatch(path.name), path) for path in directory.glob(".final-*")]
    return [(int(match["fit"]), CheckpointPath(int(match["step"]), path)) for match, path in found if match]
