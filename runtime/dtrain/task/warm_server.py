"""A process that has imported everything, and forks a fork server for each launcher that asks for one.

It saves each launch the imports, which take half a second of a core: for those who launch hundreds of runs.
As in a fork server, there is no thread.
"""

import contextlib
import gc
import os
import signal
import socket
from pathlib import Path

import msgspec

from dtrain.errors import RunError
from dtrain.process import life_line
from dtrain.process.life_line import peer_process
from dtrain.process.start_protocol import (
    WARM_START_DESCRIPTORS,
    WARM_START_PATIENCE_S,
    WARM_START_VARIABLE,
    Differs,
    Forked,
    WarmStart,
    name_of_forked,
    surroundings,
)
from dtrain.task import fork_server
from dtrain.task.forked_task import close_all_but

_REQUEST_BYTES_MAX = 1 << 24


def serve(path: Path) -> tuple[int, int]:
    """Listen until Ctrl-C or SIGTERM; return in each fork server, with descriptors of orders and life line.

    Raises:
        RunError: another process listens there, or the socket cannot be made.
    """
    listener = _listen(path)
    ours = surroundings()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` has the first one ignored
        signal.signal(number, signal.default_int_handler)
    try:
        fork_server.import_all()
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
