"""The directory of one launch: its id, made or found, locked for as long as the launch lives."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from dtrain.errors import RunInUseError, RunNotFoundError, SpecError
from dtrain.run_files import RunFiles


def new_run_id(name: str, now: datetime) -> str:
    """For example ``20261121-094500-digits-ab12``: sorts by time, tells people what it is."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


@contextmanager
def locked_run_directory(directory: Path, resume: bool) -> Iterator[RunFiles]:
    """Make the directory if need be and hold its lock.

    Args:
        directory: the run's own directory.
        resume: whether it may, and must, hold an earlier launch of the run.

    Raises:
        RunInUseError: another launch, or a chief started by hand, holds the lock.
        RunError: it cannot be made or is not writable.
        SpecError: it holds a run that is not to be resumed.
        RunNotFoundError: it holds no run that could be resumed.
    """
    files = RunFiles(directory)
    files.create()
    lock = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUseError(f"{directory} is in use by another launch; give another --run-dir, or stop that run") from None
        if files.run.exists() and not resume:
            raise SpecError(f"{directory} already holds a run; go on with it by --resume, or give another --run-dir")
        if resume and not files.run.exists():
            raise RunNotFoundError(f"there is no run in {directory} to resume; leave out --resume to start one there")
        files.keep_room()
        yield files
    finally:
        files.give_room_back()
        os.close(lock)
