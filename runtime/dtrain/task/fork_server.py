"""The fork server: everything imported once, one fork a task.

Forking from here costs a few milliseconds instead of a third of a second, and 100 tasks share the memory of
the imports. It never opens a channel, starts a server or a Python thread: a fork copies only the thread that
calls it, and would leave the locks of all others locked for ever. It reaps its children and reports their
ends to the launcher. It adopts the processes that tasks leave behind, and kills them when the launcher is
gone.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Iterator

from dtrain.process import life_line, start_protocol
from dtrain.process.assignment import SPEC
from dtrain.process.resources import NUMPY_LIMITS
from dtrain.process.start_protocol import Exited, Refused, Started, StartTask
from dtrain.task.forked_task import become

IMPORTS = (
    "numpy",
    "threadpoolctl",
    "argparse",
    "dtrain.task.program",
    "dtrain.runs.failure",
    "dtrain.callbacks",
    "dtrain.data",
    "dtrain.learning.layers",
    "dtrain.learning.losses",
    "dtrain.learning.metrics",
    "dtrain.learning.optimizers",
    "dtrain.strategies.choice",
    "dtrain.training.models",
    "dtrain.training.models",
)
"""Modules that every task needs; one that cannot be imported here fails in the task, with a traceback."""

STRATEGY_IMPORTS = {
    "parameter_server_sync": "dtrain.strategies.parameter_server.strategy",
    "parameter_server_async": "dtrain.strategies.parameter_server.strategy",
    "multi_worker_mirrored": "dtrain.strategies.multi_worker_mirrored.strategy",
}
"""By the kind of `training`, the module that its tasks need besides: a tenth of a second for each of them."""

GRPC_IMPORTS = (
    "dtrain.wire.grpc_client",
    "grpc._channel",  # what grpc itself imports when it is first used
    "grpc._server",
    "dtrain.roles.parameter_server.serving",
)
"""Modules that tasks with gRPC need besides."""

_READ_BYTES = 1 << 16


def serve(launcher_fd: int, life_line_fd: int) -> StartTask:
    """Fork a task for each request until the launcher is gone; return in each child, with its request."""
    # A task that is asked for its stacks before it has a log would write them where the launcher does. An
    # engine ends a job by a SIGTERM to every process: tasks act on it, as soon as they can.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})
    import_all()
    life_line.outlive_parent()  # from here on the end of its orders tells it
    life_line.adopt_orphans()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()  # a garbage collection in a child must not write to shared pages

    launcher = socket.socket(fileno=launcher_fd)
    lines = start_protocol.Lines(start_protocol.STARTS.decode, start_protocol.ORDER_BYTES_MAX)
    running: dict[int, StartTask] = {}
    gate: Gate | None = None
    waiting: list[StartTask] = []
    while True:
        readable, _, _ = select.select([launcher_fd, wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, _READ_BYTES)
            _report_ends(launcher, running)
        if launcher_fd in readable:
            data = _receive(launcher)
            if not data:
                _end(running)
            waiting += lines.feed(data)
            more = bool(select.select([launcher_fd], [], [], 0)[0])
            for start in _due(waiting, more):
                gate = gate or Gate()
                if _fork(launcher, start, running):
                    gate.wait()
                    launcher.detach()
                    become(start, life_line_fd)
                    return start
            if gate and not more:
                gate.open()
                gate = None


def _due(waiting: list[StartTask], more: bool) -> Iterator[StartTask]:
    """Yield the requests to carry out now, and take them from `waiting`.

    Tasks that need gRPC come last, when all requests are there: it is imported for them, and the others share
    5 MB less, 0.8 MB each of an idle cluster.
    """
    for start in sorted(waiting, key=lambda start: start.needs_grpc):
        _import(_strategy_of(start))
        gc.freeze()
        if start.needs_grpc:
            if more:
                return
            _import(GRPC_IMPORTS)
            gc.freeze()
        waiting.remove(start)
        yield start


def _strategy_of(start: StartTask) -> tuple[str, ...]:
    """Return the module of a task's strategy, as far as its spec says it; its program may choose another."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return (STRATEGY_IMPORTS[json.loads(start.environment[SPEC])["training"]["kind"]],)
    return ()


class Gate:
    """A gate that holds forked tasks until the requests that have arrived are all carried out.

    Otherwise the first of 100 tasks train at full speed while the last ones are still being forked, and
    starve the fork.
    """

    def __init__(self) -> None:
        self._reading_end, self._writing_end = os.pipe2(os.O_CLOEXEC)

    def wait(self) -> None:
        """Wait, in a task, until the gate opens."""
        os.close(self._writing_end)
        os.read(self._reading_end, 1)

    def open(self) -> None:
        """Release all tasks, in the fork server."""
        os.close(self._writing_end)
        os.close(self._reading_end)


def import_all() -> None:
    """Import with one thread for arithmetic, as no pool survives a fork; each task sets its own limit."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(NUMPY_LIMITS, "1"))
    _import(IMPORTS)
    for name in NUMPY_LIMITS:
        del os.environ[name]
    os.environ.update(before)


def _import(names: tuple[str, ...]) -> None:
    gc.disable()  # what is imported stays: looking for garbage in it would take a tenth of the time
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.enable()


def _receive(launcher: socket.socket) -> bytes:
    try:
        return launcher.recv(_READ_BYTES)
    except ConnectionError:
        return b""


def _fork(launcher: socket.socket, start: StartTask, running: dict[int, StartTask]) -> bool:
    """Fork the task of a request; return True in the child."""
    parent = os.getpid()
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # BLAS may have a thread
            pid = os.fork()
    except OSError as error:
        _report(
            launcher, Refused(start.task, start.attempt, f"cannot fork: {error.strerror}{_remedy(error)}")
        )
        return False
    if pid == 0:
        signal.set_wakeup_fd(-1)
        os.setsid()
        life_line.die_with_parent(parent)
        return True
    running[pid] = start
    _report(launcher, Started(start.task, start.attempt, pid))
    return False


def _remedy(error: OSError) -> str:
    """Return the remedy where the system refuses a process."""
    return (
        "; raise the limit of processes (`ulimit -u`), or start fewer tasks"
        if error.errno == errno.EAGAIN
        else ""
    )


def _report_ends(launcher: socket.socket, running: dict[int, StartTask]) -> None:
    """Reap everything that has ended; a child that is no task was adopted from one."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        start = running.pop(pid, None)
        if start is not None:
            exit_status = os.waitstatus_to_exitcode(status)
            _report(launcher, Exited(start.task, start.attempt, exit_status, usage.ru_maxrss * 1024))


def _report(launcher: socket.socket, report: start_protocol.Report) -> None:
    with contextlib.suppress(ConnectionError):  # the launcher is gone; the next read sees it
        launcher.sendall(start_protocol.encode(report))


def _end(running: dict[int, StartTask]) -> None:
    """Kill the tasks' groups, as the launcher is gone, then all that is adopted as a consequence."""
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    life_line.kill_children()
    sys.stderr.flush()
    os._exit(0)
