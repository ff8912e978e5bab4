"""The directory of one launch: its id, made or found, locked for as long as the launch lives."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from dtrain.errors import RunInUseError, RunNotFoundError, SpecError
from dtrain.runs import ownership
from dtrain.runs.files import RunFiles
from dtrain.runs.json_file import give_room_back, keep_room


def new_run_id(name: str, now: datetime) -> str:
    """Return for example ``20261121-094500-digits-ab12``, which sorts by time and names the run."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def check_fit(files: RunFiles) -> None:
    """Make sure that an existing directory may be taken for a run.

    Raises:
        SpecError: it is another's, others may write to it, or it holds other files than a run's.
    """
    if strange := _strange(files):
        raise SpecError(
            f"{files.directory} cannot be a run's directory: {strange}; give a new or empty one with "
            "--run-dir"
        )


def _strange(files: RunFiles) -> str | None:
    """Return why an existing directory is unfit for a run; None: it is fit, or not there."""
    try:
        if why := ownership.strange(files.directory.stat()):
            return why
    except OSError:  # why it cannot be had is said when it is made
        return None
    try:
        names = sorted(path.name for path in files.directory.iterdir())
    except OSError as error:
        return error.strerror
    if files.run.name not in names and (alien := [name for name in names if not files.is_own(name)]):
        return (
            f"it holds {alien[0]}{f' and {len(alien) - 1} more' if alien[1:] else ''}, which no run has made"
        )
    return None


@contextmanager
def locked_run_directory(directory: Path, resume: bool) -> Iterator[RunFiles]:
    """Make the directory if need be and hold its lock.

    Args:
        directory: the run's own directory.
        resume: whether it may, and must, hold an earlier launch of the run.

    Raises:
        RunInUseError: another launch, or a chief started by hand, holds the lock.
        RunError: it cannot be made or is not writable.
        SpecError: it holds a run that is not to be resumed, or is not fit for a run.
        RunNotFoundError: it holds no run that could be resumed.
    """
    files = RunFiles(directory)
    check_fit(files)
    files.create()
    lock = files.open_lock()
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUseError(
                f"{directory} is in use by another launch; give another --run-dir, or stop that run"
            ) from None
        if files.run.exists() and not resume:
            raise SpecError(
                f"{directory} already holds a run; resume it with --resume, or give another --run-dir"
            )
        if resume and not files.run.exists():
            raise RunNotFoundError(
                f"there is no run in {directory} to resume; leave out --resume to start one there"
            )
        keep_room(directory)
        yield files
    finally:
        give_room_back(directory)
        os.close(lock)
