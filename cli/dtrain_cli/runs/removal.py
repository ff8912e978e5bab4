"""Removing runs that have ended: what they use, who may go, and the removal itself.

A run is locked while it is removed, and its record goes last: a removal that was interrupted is a run that
can be removed again.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dtrain.errors import RunError, RunInUseError
from dtrain.runs.files import RunFiles
from dtrain_cli.runs.index import KnownRun, instant
from dtrain_cli.runs.report import launcher_lives

_LAST = ("run.json", "lock")


def bytes_of(run: KnownRun, runs_dir: Path) -> int:
    """Return the bytes on disk of what `remove_run` would remove; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in _parts(run.files, runs_dir):
        for each in (
            path,
            *(Path(folder, name) for folder, *names in os.walk(path) for name in (*names[0], *names[1])),
        ):
            with contextlib.suppress(OSError):  # a run that lives removes files as well
                facts = each.lstat()
                seen[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
    return sum(seen.values())


def alive_text(run: KnownRun) -> str:
    """Say why a run is not removed."""
    return f"run {run.record.run} is still running; stop it first with `dtrain stop {run.record.run}`"


def old_runs(
    runs: Sequence[KnownRun], older_than: timedelta | None, keep: int, now: datetime
) -> list[KnownRun]:
    """Choose the runs that may go.

    Args:
        runs: in any order.
        older_than: spare those that ended less than so long ago; None spares none.
        keep: spare so many of the newest.
        now: the present, with a time zone.
    """
    newest_first = sorted(runs, key=lambda run: instant(run.started), reverse=True)
    return [run for run in newest_first[keep:] if older_than is None or now - _ended(run) > older_than]


def _ended(run: KnownRun) -> datetime:
    """Return when a run ended. Where that is not recorded, the time of its last record counts."""
    if run.record.ended is not None:
        return instant(run.record.ended)
    return datetime.fromtimestamp(run.files.run.stat().st_mtime, UTC)


def remove_run(run: KnownRun, runs_dir: Path) -> None:
    """Remove a run's files, and the link below the runs directory to one that has a directory of its own.

    Of a directory elsewhere only what dtrain has written goes, and the directory itself if that leaves it
    empty.

    Raises:
        RunInUseError: it lives.
        RunError: something cannot be removed.
    """
    files = run.files
    try:
        with _locked(run):
            for path in _parts(files, runs_dir):
                _remove(path)
        with contextlib.suppress(OSError):  # what is not ours stays
            files.directory.rmdir()
        for link in _links(files, runs_dir):
            link.unlink()
    except OSError as error:
        raise RunError(
            f"run {run.record.run} cannot be removed: {error.filename}: {error.strerror}"
        ) from None


@contextlib.contextmanager
def _locked(run: KnownRun) -> Iterator[None]:
    lock = run.files.open_lock()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if launcher_lives(run.record):
            raise BlockingIOError
        yield
    except BlockingIOError:
        raise RunInUseError(alive_text(run)) from None
    finally:
        os.close(lock)


def _parts(files: RunFiles, runs_dir: Path) -> list[Path]:
    """Return the parts to remove, in order."""
    own_place = files.directory.parent == runs_dir.resolve()
    paths = [path for path in files.directory.iterdir() if own_place or files.is_own(path.name)]
    return sorted(paths, key=lambda path: path.name in _LAST and 1 + _LAST.index(path.name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _links(files: RunFiles, runs_dir: Path) -> list[Path]:
    return [path for path in runs_dir.iterdir() if path.is_symlink() and path.resolve() == files.directory]
