"""The owner of a run directory: only this user's own counts, and others must not be able to write in it.

Another user who may write in a run directory, or make one where runs are looked for, could otherwise read the
run's secret, remove its records, or let `dtrain stop` end a process of his choice.
"""

import errno
import os
import stat
from pathlib import Path

from dtrain.errors import RunError

PRIVATE = 0o700
NOT_BELIEVED = "only this user's own runs are read"


def strange(facts: os.stat_result) -> str | None:
    """Return why a folder or file is not this user's alone, and what to do; None if it is."""
    if facts.st_uid != os.geteuid():
        return f"it belongs to another user (uid {facts.st_uid})"
    if facts.st_mode & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o}; `chmod go-w` corrects it)"
    return None


def open_own(directory: Path) -> int:
    """Open a folder that is this user's alone; the caller closes the descriptor.

    Raises:
        OSError: there is none, or it cannot be opened.
        RunError: it is not this user's alone.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if why := strange(os.fstat(descriptor)):
        os.close(descriptor)
        raise RunError(f"{directory} is not used as a run's directory: {why}; {NOT_BELIEVED}")
    return descriptor


def make_private(directory: Path) -> None:
    """Give an existing run directory mode 0700, so that only its owner can read it.

    Raises:
        OSError: there is none, or it cannot be opened.
        RunError: it is not this user's alone.
    """
    descriptor = open_own(directory)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != PRIVATE:
            os.fchmod(descriptor, PRIVATE)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EROFS):  # a file system without modes
            raise
    finally:
        os.close(descriptor)
