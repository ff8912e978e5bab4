"""The liveness of a process by pid and start time, because another process may have got the pid."""

import os
import select
from pathlib import Path


def started_s(pid: int) -> float | None:
    """Return when a process started, in seconds since boot, which clock changes do not move; None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc_pid_stat(5)


def lives(pid: int, started: float) -> bool:
    """Return whether the process of that pid and start time (`started_s`) lives, or has not been reaped."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return False
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        return not end.poll(0) and started_s(pid) == started
    finally:
        os.close(descriptor)
