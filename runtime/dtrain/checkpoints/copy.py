"""A copy of a checkpoint in another folder."""

from pathlib import Path

from dtrain.checkpoints.reader import open_checkpoint
from dtrain.checkpoints.rotation import rotate
from dtrain.checkpoints.writer import save


def copy_latest(source: Path, target: Path, now: float) -> None:
    """Replace a folder's contents by another's newest sound checkpoint, or raise a `CheckpointError`."""
    with open_checkpoint(source) as checkpoint:
        arrays = {name: checkpoint.read(name) for name in checkpoint.arrays}
        save(target, checkpoint.step, arrays, checkpoint.manifest.extra, now=now)
    rotate(target, keep=1, now=now)
