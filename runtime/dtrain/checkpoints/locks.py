"""Shared locks of readers on checkpoints, so that nothing is removed under them; they end with a process."""

import fcntl
import os
import time
from pathlib import Path

from dtrain.checkpoints.manifest import MANIFEST
from dtrain.errors import CheckpointError
from dtrain.formats.bounded_reading import open_regular

LOCK_WAIT_S = 10.0
"""`is_read` holds its lock for less than a millisecond; a longer one is another program's."""
RETRY_S = 0.01


def open_for_reading(checkpoint: Path, wait_s: float = LOCK_WAIT_S) -> int:
    """Open a checkpoint's manifest, with a shared lock on it; the caller closes the descriptor.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is no regular file.
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
    """Return whether a process reads a checkpoint at this moment."""
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
