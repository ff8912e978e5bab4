"""The guardian of one foreign command, which knows nothing of life lines.

    python -m dtrain_cli.targets.guardian LIFELINE REPORTS TASK ATTEMPT COMMAND...

It starts the command in a session of its own, adopts the orphans of the command, and reports the start and
the end (`dtrain.process.start_protocol`). When the command has ended, or the launcher is gone, it leaves
nothing that the command started.
"""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from functools import partial

from dtrain.process import life_line, start_protocol
from dtrain.process.start_protocol import Exited, Refused, Started


def main(arguments: list[str]) -> None:
    """Guard one command to its end."""
    line_fd = int(arguments[0])
    reports_fd = int(arguments[1])
    task = arguments[2]
    attempt = int(arguments[3])
    command = arguments[4:]
    os.set_inheritable(line_fd, False)
    os.set_inheritable(reports_fd, False)
    life_line.adopt_orphans()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an engine ends a job by one to every process

    try:
        process = subprocess.Popen(
            command,
            close_fds=False,  # of the private variables' descriptor too
            start_new_session=True,
            preexec_fn=partial(_prepare, os.getpid()),
        )
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ENOENT and os.access(command[0], os.F_OK):
            reason = "its first line names an interpreter that is not there"
        _report(reports_fd, Refused(task, attempt, f"cannot execute {command[0]}: {reason}"))
        return
    pid = process.pid  # keep `process`: subprocess reaps a Popen object that is collected
    _report(reports_fd, Started(task, attempt, pid))
    status, peak_memory_bytes = _watch(pid, line_fd, wake_read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # the group outlives its leader
    life_line.kill_children()
    _report(reports_fd, Exited(task, attempt, status, peak_memory_bytes))


def _prepare(guardian: int) -> None:
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    life_line.die_with_parent(guardian)


def _watch(pid: int, line_fd: int, wake_fd: int) -> tuple[int, int]:
    while True:
        readable, _, _ = select.select([line_fd, wake_fd], [], [])
        if line_fd in readable:
            return -signal.SIGKILL, 0
        with contextlib.suppress(BlockingIOError):
            os.read(wake_fd, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return os.waitstatus_to_exitcode(ended[1]), ended[2].ru_maxrss * 1024


def _report(reports_fd: int, report: start_protocol.Report) -> None:
    with contextlib.suppress(BrokenPipeError):  # the launcher is gone
        os.write(reports_fd, start_protocol.encode(report))


if __name__ == "__main__":
    main(sys.argv[1:])
