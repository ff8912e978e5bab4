"""Stopping a run from another terminal, and removing runs that have ended.

The launcher gets SIGTERM, and then does everything in order. A run is locked while it is removed, and its
record goes last: a removal that was interrupted is a run that can be removed again.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dtrain.errors import RunError, RunInUseError
from dtrain.process.life_line import started_s
from dtrain.runs.files import RunFiles, write_record
from dtrain.runs.json_file import read_record
from dtrain_cli.runs.index import KnownRun, instant, other_host
from dtrain_cli.runs.report import is_locked, launcher_lives


class StopRecord(msgspec.Struct, frozen=True):
    """The launcher that was told to stop by a user: its pid, and the moment of its start."""

    launcher_pid: int | None
    launcher_started: float | None


def note(run: KnownRun) -> None:
    with contextlib.suppress(OSError, RunError):
        write_record(run.files.stop, StopRecord(run.record.launcher_pid, run.record.launcher_started))


def user_has_stopped(files: RunFiles) -> bool:
    try:
        asked = read_record(files.stop, StopRecord)
    except (OSError, RunError):
        return False
    return asked == StopRecord(os.getpid(), started_s(os.getpid()))


def stop_launcher(run: KnownRun, wait_s: float) -> bool:
    """Ask the launcher of a run to stop it, and wait; return whether it has ended.

    Only a process of this user that holds the run's lock is asked: the record alone might be anybody's.
    """
    record = run.record
    if (host := other_host(record)) is not None:
        raise RunError(
            f"run {record.run} is led on {host} (process {record.launcher_pid} there); give "
            f"`dtrain stop {run.files.directory}` on {host}"
        )
    try:
        process = os.pidfd_open(record.launcher_pid or 0)
    except (ValueError, OverflowError, OSError):
        raise RunError(
            f"the launcher of run {record.run} is not a process of this machine (pid {record.launcher_pid})"
        ) from None
    try:
        # The descriptor holds on to the process: its pid cannot be another process's between this check and
        # the signal.
        if not launcher_lives(record):
            return True
        if not _is_launcher(record.launcher_pid or 0, run.files.lock):
            raise RunError(
                f"process {record.launcher_pid} is not the launcher of run {record.run}: it does not hold "
                f"{run.files.lock}; nothing was stopped"
            )
        note(run)
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # Ctrl-Z may have stopped it
        ended, _, _ = select.select([process], [], [], wait_s)
    except PermissionError:
        raise RunError(
            f"the launcher of run {record.run} (pid {record.launcher_pid}) belongs to another user"
        ) from None
    except ProcessLookupError:
        return True
    finally:
        os.close(process)
    return bool(ended)


def _is_launcher(pid: int, lock: Path) -> bool:
    """Return whether a process is this user's and holds a lock. Source: proc_locks(5), proc_pid_status(5)."""
    uids = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid")
    )
    if int(uids.split()[2]) != os.geteuid() or not is_locked(lock):
        return False
    try:
        inode = lock.lstat().st_ino
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:  # a kernel that does not tell the holders: the lock is held, and the record is ours
        return True
    # Some file systems have another device number here than for stat(2); a pid and an inode are enough.
    return any(words[-4] == str(pid) and words[-3].rpartition(":")[2] == str(inode) for words in held)


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
    return f"run {run.record.run} is still running; stop it first with `dtrain stop {run.record.run}`"


def old_runs(
    runs: Sequence[KnownRun], older_than: timedelta | None, keep: int, now: datetime
) -> list[KnownRun]:
    """Return the runs that are not among the newest `keep` and that ended longer ago than `older_than`."""
    newest_first = sorted(runs, key=lambda run: instant(run.started), reverse=True)
    return [run for run in newest_first[keep:] if older_than is None or now - _ended(run) > older_than]


def _ended(run: KnownRun) -> datetime:
    if run.record.ended is not None:
        return instant(run.record.ended)
    return datetime.fromtimestamp(run.files.run.stat().st_mtime, UTC)


def remove_run(run: KnownRun, runs_dir: Path) -> None:
    """Remove a run's files, and the link below the runs directory to one that has a directory of its own.

    Of a directory elsewhere only what dtrain has written goes, and the directory itself if that leaves it
    empty.
    """
    files = run.files
    try:
        with _locked(run):
            for path in _parts(files, runs_dir):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        with contextlib.suppress(OSError):  # what is not ours stays
            files.directory.rmdir()
        for path in list(runs_dir.iterdir()):
            if path.is_symlink() and path.resolve() == files.directory:
                path.unlink()
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
    own_place = files.directory.parent == runs_dir.resolve()
    paths = [path for path in files.directory.iterdir() if own_place or files.is_own(path.name)]
    return sorted(paths, key=lambda path: path.name in _LAST and 1 + _LAST.index(path.name))
