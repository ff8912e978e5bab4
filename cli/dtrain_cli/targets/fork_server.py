"""The launcher's side of the fork server."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from dtrain.process import WARM_START_VARIABLE
from dtrain.process.life_line import peer_process
from dtrain.process.start_protocol import (
    REPORTS,
    WARM_START_PATIENCE_S,
    Differs,
    Forked,
    Lines,
    MessageStream,
    Report,
    StartTask,
    WarmStart,
    surroundings,
)
from dtrain_cli.targets.cold_start import ColdStart, LifeLine, start


class _WarmProcess:
    """A fork server that `dtrain fork-server` has forked, with what is needed here of `subprocess.Popen`."""

    def __init__(self, forked: Forked) -> None:
        self.pid = forked.pid
        self._keeper = os.pidfd_open(forked.keeper)
        self._process = os.pidfd_open(forked.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until its keeper, too, has ended, and with it all that it left."""
        select.select([self._keeper], [], [], WARM_START_PATIENCE_S)


def _warm(line: LifeLine) -> tuple[_WarmProcess, socket.socket] | None:
    """Return a fork server and its socket from the process that DTRAIN_FORK_SERVER names, or None."""
    if not (path := os.environ.get(WARM_START_VARIABLE)):
        return None
    ours, theirs = socket.socketpair()
    try:
        request = msgspec.json.encode(WarmStart(surroundings(), dict(os.environ), str(Path.cwd())))
        with (
            theirs,
            socket.socket(socket.AF_UNIX) as connection,
            os.fdopen(os.memfd_create("dtrain"), "wb", buffering=0) as memory,
        ):
            connection.settimeout(WARM_START_PATIENCE_S)
            connection.connect(path)
            memory.write(request)
            if peer_process(connection)[1] != os.geteuid():
                raise PermissionError("it belongs to another user")
            fds = [theirs.fileno(), line.reading_end, 2, memory.fileno()]
            socket.send_fds(connection, [b"."], fds)
            answer = msgspec.json.decode(connection.recv(1 << 16), type=Forked | Differs)
            if isinstance(answer, Forked):
                return _WarmProcess(answer), ours
            reason = f"it was started with other surroundings ({answer.what})"
    except (OSError, msgspec.MsgspecError) as error:
        reason = str(error)
    ours.close()  # a fork server that comes too late reads the end of its orders, and ends
    sys.stderr.write(f"dtrain: {WARM_START_VARIABLE}={path} is not used: {reason}\n")
    return None


class ForkServer(MessageStream[Report]):
    """The fork server: takes start orders and reports the tasks' ends; `over` once it has died."""

    def __init__(self, line: LifeLine, early: ColdStart | None = None, *, bare: bool = False) -> None:
        self._process: _WarmProcess | subprocess.Popen[bytes]
        self._process, self._socket = early or _warm(line) or start(line, bare)
        super().__init__(self._socket.fileno(), self._socket.fileno(), Lines(REPORTS.decode))
        self._reports: list[Report] = []
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it, and with it what it has forked. Repeating it does no harm."""
        self._process.kill()
        self._process.wait()

    @property
    def unread(self) -> bool:
        """Whether `reports` has something to return although `fileno()` may not be readable."""
        return bool(self._reports)

    def order(self, task: StartTask) -> None:
        """Have a task started. If the fork server is gone, `reports` will say so.

        Reports are read meanwhile: with hundreds of tasks both ends would wait for each other to read.
        """
        self.send(task)
        while not self.over and (self.waiting_bytes or not self.writable):
            select.select([self], [self], [])
            self._reports += self.read()
            self.pump()

    def reports(self) -> list[Report]:
        reports = [*self._reports, *self.read()]
        self._reports = []
        return reports
