"""The fork server: everything imported once, one fork a task; and one that forks fork servers.

Forking from here costs a few milliseconds instead of a third of a second, and 100 tasks share the memory of
the imports. It never opens a channel, starts a server or a Python thread: a fork copies only the thread that
calls it, and would leave the locks of all others locked for ever. It reaps its children and reports their
ends to the launcher. It adopts the processes that tasks leave behind, and kills them when the launcher is
gone. A foreign command knows nothing of life lines: the fork server forks a guardian for each, which starts
it, reports its start and its end, and kills what it leaves.

It saves each launch the imports, which take half a second of a core: for those who launch hundreds of runs.
As in a fork server, there is no thread.
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
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from dtrain.errors import RunError
from dtrain.process import WARM_START_VARIABLE, life_line, private_variables, start_protocol
from dtrain.process.assignment import SPEC
from dtrain.process.life_line import peer_process
from dtrain.process.resources import NUMPY_LIMITS
from dtrain.process.start_protocol import (
    WARM_START_DESCRIPTORS,
    WARM_START_PATIENCE_S,
    Differs,
    Exited,
    Forked,
    Refused,
    Started,
    StartTask,
    WarmStart,
    name_of_forked,
    surroundings,
)
from dtrain.task.program import become, close_all_but

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
)
"""Modules that every task needs; one that cannot be imported here fails in the task, with a traceback."""

STRATEGY_IMPORTS = {
    "parameter_server_sync": "dtrain.strategies.parameter_server.strategy",
    "parameter_server_async": "dtrain.strategies.parameter_server.strategy",
    "multi_worker_mirrored": "dtrain.strategies.multi_worker_mirrored.strategy",
    "pipeline": "dtrain.strategies.pipeline.strategy",
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


def serve(launcher_fd: int, life_line_fd: int, imports: bool = True) -> StartTask:
    """Fork a task for each request until the launcher is gone; return in each child, with its request.

    `imports`: of what programs need; commands alone need nothing of it.
    """
    # A task that is asked for its stacks before it has a log would write them where the launcher does. An
    # engine ends a job by a SIGTERM to every process: tasks act on it, as soon as they can.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})
    if imports:
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
                    if start.executed:
                        _guard(launcher, start, life_line_fd)
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
        if not start.executed:
            _import(_strategy_of(start))
            gc.freeze()
        if start.needs_grpc and not start.executed:
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
    if not start.executed:
        _report(launcher, Started(start.task, start.attempt, pid))
    return False


def _guard(launcher: socket.socket, start: StartTask, life_line_fd: int) -> NoReturn:
    """Run a command to its end, in a forked process; leave nothing that it has started."""
    life_line.adopt_orphans()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    try:
        process = _started(start)
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ENOENT and os.access(start.argv[0], os.F_OK):
            reason = "its first line names an interpreter that is not there"
        why = f"cannot execute {start.argv[0]}: {reason}{_remedy(error)}"
        _report(launcher, Refused(start.task, start.attempt, why))
        os._exit(0)
    _report(launcher, Started(start.task, start.attempt, process.pid))
    status, peak_memory_bytes = _end_of(process.pid, life_line_fd, wake_read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the group outlives its leader
    life_line.kill_children()
    _report(launcher, Exited(start.task, start.attempt, status, peak_memory_bytes))
    os._exit(0)


def _started(start: StartTask) -> "subprocess.Popen[bytes]":
    environment, guardian = {**os.environ, **start.environment}, os.getpid()
    private = private_variables.handed_over(start.private) if start.private else None
    if private is not None:
        environment[private_variables.DESCRIPTOR] = str(private)

    def prepare() -> None:
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        life_line.die_with_parent(guardian)

    with open(start.log, "ab") as log:
        return subprocess.Popen(
            start.argv,
            env=environment,
            cwd=start.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=() if private is None else (private,),
            start_new_session=True,
            preexec_fn=prepare,
        )


def _end_of(command: int, life_line_fd: int, wake_fd: int) -> tuple[int, int]:
    """Return the status of a command at its end, or when the launcher is gone, and its peak memory."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    return os.waitstatus_to_exitcode(ended[1]), ended[2].ru_maxrss * 1024
        if life_line_fd in select.select([life_line_fd, wake_fd], [], [])[0]:
            return -signal.SIGKILL, 0
        with contextlib.suppress(BlockingIOError):
            os.read(wake_fd, _READ_BYTES)


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
        exit_status = os.waitstatus_to_exitcode(status)
        if start is not None and not (start.executed and exit_status == 0):  # else its guardian has told it
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


_REQUEST_BYTES_MAX = 1 << 24


def serve_launchers(path: Path) -> tuple[int, int]:
    """Listen until Ctrl-C or SIGTERM; return in each fork server, with descriptors of orders and life line.

    Raises:
        RunError: another process listens there, or the socket cannot be made.
    """
    listener = _listen(path)
    ours = surroundings()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` has the first one ignored
        signal.signal(number, signal.default_int_handler)
    try:
        import_all()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        print(f"dtrain: serves launches with {WARM_START_VARIABLE}={path}", flush=True)  # noqa: T201
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, msgspec.MsgspecError):
                connection.settimeout(WARM_START_PATIENCE_S)
                found = _answer(connection, ours)
            if found is not None:
                listener.close()
                return found
    except KeyboardInterrupt:
        path.unlink(missing_ok=True)
        raise SystemExit(0) from None


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise RunError(f"{path}: another process listens there; give another SOCKET")
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)  # no client can connect before the socket listens
    except OSError as error:
        raise RunError(
            f"{path}: cannot listen there: {error.strerror or error}; give another SOCKET"
        ) from None
    listener.listen()
    return listener


def _answer(connection: socket.socket, ours: list[str]) -> tuple[int, int] | None:
    """Fork what the launcher asks for; return, in the fork server alone, the descriptors that it has sent."""
    launcher, user = peer_process(connection)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, WARM_START_DESCRIPTORS)
    try:
        if user != os.geteuid() or len(descriptors) != WARM_START_DESCRIPTORS:
            return None
        orders, line, stderr, memory = descriptors
        request = msgspec.json.decode(os.pread(memory, _REQUEST_BYTES_MAX, 0), type=WarmStart)
        if other := sorted({*request.surroundings} ^ {*ours}):
            connection.sendall(msgspec.json.encode(Differs(other[0])))
        elif os.fork() == 0:
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(request.environment)
            os.chdir(request.cwd)
            nothing = os.open(os.devnull, os.O_RDWR)
            for source, standard in ((nothing, 0), (nothing, 1), (stderr, 2)):
                os.dup2(source, standard)
            _fork_server_of(launcher, connection)
            descriptors = [stderr, memory, nothing]
            return orders, line
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_server_of(launcher: int, connection: socket.socket) -> None:
    """Fork once more; return in the child. This process kills all that the child leaves, and ends with it.

    Both have the launcher's pid in their name: `ps -o comm` shows whose they are.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    Path("/proc/self/comm").write_text(name_of_forked(launcher))
    life_line.adopt_orphans()
    keeper = os.getpid()
    if (pid := os.fork()) == 0:
        life_line.die_with_parent(keeper)
        return
    with contextlib.suppress(OSError):
        connection.sendall(msgspec.json.encode(Forked(pid, keeper)))
    close_all_but({0, 1, 2})
    os.waitpid(pid, 0)
    life_line.kill_children()
    os._exit(0)
