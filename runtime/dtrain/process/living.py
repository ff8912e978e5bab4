"""Other processes of this machine: whether one lives, and which one is at the other end of a socket."""

import os
import select
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


def started_s(pid: int) -> float | None:
    """Return when a process started, in seconds since boot, which clock changes do not move; None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc_pid_stat(5)


def lives(pid: int, started: float) -> bool:
    """Return whether the process of that pid and start time (`started_s`) lives, or has not been reaped.

    The start time tells it from another process that has got the pid since.
    """
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


def peer_process(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id at the other end of a Unix socket, as the kernel knows them."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user
