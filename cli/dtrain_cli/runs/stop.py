"""Stopping a run from another terminal: SIGTERM to its launcher, which then does everything in order."""

import os
import select
import signal
from pathlib import Path

from dtrain.errors import RunError
from dtrain_cli.runs.index import KnownRun
from dtrain_cli.runs.report import is_locked, launcher_lives


def stop_launcher(run: KnownRun, wait_s: float) -> bool:
    """Ask the launcher of a run to stop it, and wait; whether it has ended.

    Only a process of this user that holds the run's lock is asked: the record alone might be anybody's.

    Raises:
        RunError: the launcher belongs to another user, runs on another machine, or does not hold the lock.
    """
    record = run.record
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
