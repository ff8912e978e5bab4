"""Shared locks of readers on checkpoints, so that nothing is removed under them; they end with a process."""

import fcntl
import os
from pathlib import Path

from dtrain.checkpoints.manifest import MANIFEST


def open_for_reading(checkpoint: Path) -> int:
    """Open a checkpoint's manifest, with a shared lock on it; the caller closes the descriptor.

    Raises:
        FileNotFoundError: it is not there.
    """
    descriptor = os.open(checkpoint / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits at most for the brief lock of `is_read`
    return descriptor


def is_read(checkpoint: Path) -> bool:
    """Return whether a process reads a checkpoint at this moment."""
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
