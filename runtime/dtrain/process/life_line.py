"""Dying together: no process outlives the launcher that owns it; and whether another process lives.

Two ties hold a task, because each misses a case. PR_SET_PDEATHSIG kills it when its parent dies, but not its
own children. The *life line* is a pipe whose other end only the launcher holds: at its end-of-file the task
kills its whole group. A process that leaves the group too (a session of its own) is killed by the process
that adopts orphans: launcher, fork server, guardian.

A task that was started by hand has no launcher that would kill it: after SIGTERM it ends itself when its time
is over (`limit_leaving`).
"""

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends.

    Args:
        parent: the parent's pid as it was before the fork; if it is already gone, this process ends here.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, instead of init."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def watch(life_line: int) -> None:
    """Kill this process's group as soon as `life_line` (the reading end of a pipe) is at its end."""
    threading.Thread(
        target=_kill_group_at_end, args=(life_line,), name="dtrain-life-line", daemon=True
    ).start()


def _kill_group_at_end(life_line: int) -> None:
    while os.read(life_line, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def limit_leaving(grace_s: float, last_word: str) -> Callable[[], None]:
    """Return a function that starts the clock: `grace_s` after its call this process is killed in any case.

    It takes no lock, so that a signal handler may call it.

    Args:
        grace_s: seconds.
        last_word: written on stderr then, below the stacks of all threads.
    """
    reading_end, writing_end = os.pipe()
    threading.Thread(
        target=_kill_later, args=(reading_end, grace_s, last_word), name="dtrain-grace", daemon=True
    ).start()

    def start() -> None:
        os.write(writing_end, b".")

    return start


def _kill_later(order: int, grace_s: float, last_word: str) -> None:
    os.read(order, 1)
    time.sleep(grace_s)
    with contextlib.suppress(OSError, ValueError):  # the program has closed its stderr
        faulthandler.dump_traceback(all_threads=True)
        os.write(2, f"{last_word}\n".encode())
    if os.getpid() == 1:
        os._exit(128 + signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def die_of(number: int) -> None:
    """Die of the next such signal, also as process 1 of a container, which default actions spare."""
    if os.getpid() == 1:
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    else:
        signal.signal(number, signal.SIG_DFL)


def kill_children(patience_s: float = 2.0) -> None:
    """Kill and reap every child; if this process adopts orphans, every descendant of any session.

    Args:
        patience_s: how long to wait for the kernel; a process in an uninterruptible wait may outlast it.
    """
    deadline_s = time.monotonic() + patience_s
    while (children := _children()) and time.monotonic() < deadline_s:
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _children() -> list[int]:
    own = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                if int(parent) == own:
                    found.append(int(entry.name))
    return found


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


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
