"""Whether a process still lives: its pid alone may by now be a stranger's."""

import os
import select
from pathlib import Path


def started_s(pid: int) -> float | None:
    """When a process started, in seconds since the machine did, which no change of the clock moves; None: it
    is not there.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc_pid_stat(5)


def lives(pid: int, started: float) -> bool:
    """Return whether the process of that pid and start time (`started_s`) has not ended; one that was not
    reaped has.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        return not end.poll(0) and started_s(pid) == started
    finally:
        os.close(descriptor)
