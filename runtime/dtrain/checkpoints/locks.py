"""Locks on checkpoints: shared by readers, so that nothing is removed under them. They end with the process
that holds them.
"""

import fcntl
import os
from pathlib import Path

from dtrain.checkpoints.manifest import MANIFEST


def open_for_reading(checkpoint: Path) -> int:
    """Open a checkpoint's manifest and hold a shared lock on it; to be closed.

    Raises:
        FileNotFoundError: it is not there.
    """
    descriptor = os.open(checkpoint / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for a look by `is_read` at most
    return descriptor


def is_read(checkpoint: Path) -> bool:
    """Return whether a checkpoint is being read at this moment."""
    try:
        descriptor = os.open(checkpoint / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
