"""Stopping a run from another terminal: SIGTERM to its launcher, which then does everything in order.

To stop a launcher that runs on a node of Slurm, the same command is run on that node.
"""

import contextlib
import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from dtrain.config.choices import On
from dtrain.errors import RunError
from dtrain.process.living import started_s
from dtrain.runs.files import RunFiles, write_record
from dtrain.runs.json_file import read_record
from dtrain.runs.states import LIVE_RUN_STATES
from dtrain_cli.runs.index import KnownRun, own_record
from dtrain_cli.runs.report import is_locked, launcher_lives
from dtrain_cli.runs.where import WhereRecord, other_host
from dtrain_cli.targets.slurm import commands


@dataclass(frozen=True)
class StopRecord:
    """The launcher that was told to stop by a user: its pid, and the moment of its start."""

    launcher_pid: int | None
    launcher_started: float | None


def note(run: KnownRun) -> None:
    """Note that the user, and no engine, stops this launch of a run, if that can be written."""
    with contextlib.suppress(OSError, RunError):
        write_record(run.files.stop, StopRecord(run.record.launcher_pid, run.record.launcher_started))


def user_has_stopped(files: RunFiles) -> bool:
    """Return whether `dtrain stop` has told this process, the launcher of a run, to stop."""
    try:
        asked = read_record(files.stop, StopRecord)
    except (OSError, RunError):
        return False
    return asked == StopRecord(os.getpid(), started_s(os.getpid()))


def stop_launcher(run: KnownRun, wait_s: float) -> bool:
    """Ask the launcher of a run to stop it, and wait; whether it has ended.

    Only a process of this user that holds the run's lock is asked: the record alone might be anybody's.

    Raises:
        RunError: the launcher belongs to another user, runs on another machine, or does not hold the lock.
    """
    record = run.record
    if (host := other_host(record)) is not None:
        if (job := _job_of(run)) is not None:
            return _stopped_there(run, job, wait_s)
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


def _job_of(run: KnownRun) -> str | None:
    """Return the job of Slurm in which the launcher of a run lives; None: it is in none."""
    where = read_record(run.files.where, WhereRecord)
    return where.job if where is not None and where.engine is On.SLURM else None


def _stopped_there(run: KnownRun, job: str, wait_s: float) -> bool:
    """Stop a run on the machine of its launcher; return whether it has ended."""
    words = ["-P", "-m", "dtrain_cli.main", "stop", f"--wait={wait_s:g}", str(run.files.directory)]
    problem = commands.run_on_node(job, str(run.record.host), [sys.executable, *words], wait_s)
    record = own_record(run.files.directory)
    if record is None or record.state not in LIVE_RUN_STATES:
        return True
    if problem:
        raise RunError(f"the run in job {job} of Slurm is not stopped: {problem}")
    return False


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
