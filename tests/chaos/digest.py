"""A hash of every array of a run's last checkpoint, weights and slots, wherever its shards lay."""

import hashlib

import numpy as np

from dtrain import checkpoints


def read(run_dir):
    """Return the hashes by the arrays' names, and the step."""
    with checkpoints.open_checkpoint(run_dir / "checkpoints") as saved:
        hashes = {
            name: hashlib.sha256(np.ascontiguousarray(saved.read(name)).tobytes()).hexdigest()
            for name in saved.arrays
        }
        return {"step": saved.step, **hashes}
