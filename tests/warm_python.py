"""`python -m dtrain_cli.main ...` as a fork of a process that has imported everything: it saves each command two
interpreters and their imports, most of what a task costs that is started by hand.

What a command does as Python starts it (the order of sets, variables that Python reads, process 1) shows only in one
that is started anew.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

COMMAND = ("-m", "dtrain_cli.main")
TASK = ("-m", "dtrain.task")
IMPORTS = (
    *("dtrain.task.__main__", "dtrain.process.engines.found", "dtrain_cli.plan.standalone_start"),
    *("dtrain_cli.launch.entry", "dtrain_cli.launch.launcher", "dtrain_cli.launch.join.place"),
    *("dtrain_cli.launch.join.worker", "dtrain_cli.spec.file", "dtrain_cli.main"),
)
SOURCES = os.pathsep.join(
    str(Path(folder).resolve()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder
)
DIE_TOGETHER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, sys.argv[1:])"
_SERVERS: dict[tuple[str, ...], tuple[subprocess.Popen, str]] = {}
_set_by_imports: dict[str, str] = {}
REQUEST_BYTES = 1 << 18
CLONE_NEWNET = 0x40000000


class WarmPython(subprocess.Popen):
    """A process as `Popen` has it: only who forks it and who waits for it differ.

    Attributes:
        network: a process in whose network namespace it runs, or 0.
    """

    def __init__(self, words: list[str], network: int = 0, **options: Any) -> None:
        self.network = network
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._keeper.connect(server(__file__))
        super().__init__(words, **options)

    def _execute_child(self, words, *others: Any) -> None:
        """Have the server fork, where `Popen` would."""
        # Their order is that of `Popen._execute_child`; a descriptor of -1 is this process's own.
        _, _, _, _, cwd, environment, _, _, _, *pipes = others[:15]
        given, _, _, out, _, err = pipes
        standard = [number if own < 0 else own for number, own in enumerate((given, out, err))]
        request = {"words": words, "cwd": str(cwd), "environment": environment, "network": self.network}
        socket.send_fds(self._keeper, [json.dumps(request).encode()], standard)
        self._close_pipe_fds(*pipes)
        self.pid = int(self._keeper.recv(REQUEST_BYTES))
        self._child_created = True

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not select.select([self._keeper], [], [], 0 if flags & os.WNOHANG else None)[0]:
            return 0, 0
        with self._keeper:
            return self.pid, int(self._keeper.recv(REQUEST_BYTES))

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def server(*words: str) -> str:
    """Return the socket at which a Python command serves this process, with which it ends; its last word is the
    path.

    One that was killed, by a test of what kills all children, is started again.
    """
    process, path = _SERVERS.get(words, (None, ""))
    if process is None or process.poll() is not None:
        path = str(Path(tempfile.mkdtemp(prefix="dtrain-warm-")) / "socket")
        atexit.register(shutil.rmtree, Path(path).parent, ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-c", DIE_TOGETHER, sys.executable, *words, path],
            env={**os.environ, "PYTHONPATH": SOURCES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        atexit.register(process.kill)
        assert process.stdout.readline(), f"nothing serves: {words}"
        _SERVERS[words] = process, path
    return path


def enter_network(pid: int) -> None:
    """Have this process, which has one thread, use the network of another one."""
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


class Executed(BaseException):
    """What this process executes next, with which variables; it unwinds all that was called before."""


def _import_all() -> None:
    from dtrain.task import fork_server

    fork_server.import_all()
    for name in (*IMPORTS, *fork_server.STRATEGY_IMPORTS.values(), *fork_server.GRPC_IMPORTS):
        importlib.import_module(name)


def _serve(path: str) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each request, and tell who asked for it its pid, and its status at its end.

    Return in each of them its request with its descriptors.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(100)
    before = {*os.environ}
    _import_all()
    _set_by_imports.update({name: os.environ[name] for name in {*os.environ} - before})
    gc.collect()
    gc.freeze()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    ended, wakes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([listener, ended], [], [])
        if ended in readable:
            os.read(ended, REQUEST_BYTES)
            while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
                with running.pop(found[0]) as who, contextlib.suppress(OSError):
                    who.send(str(found[1]).encode())
        if listener in readable:
            connection, _ = listener.accept()
            request, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                return json.loads(request), descriptors
            running[pid] = connection
            for each in descriptors:
                os.close(each)
            with contextlib.suppress(OSError):
                connection.send(str(pid).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process what `Popen` gives to a new one."""
    import numpy as np

    from dtrain.process.warm_start import name_of_forked
    from dtrain.task.forked_task import close_all_but

    if request["network"]:
        enter_network(request["network"])
    for standard, each in enumerate(descriptors):
        os.dup2(each, standard)
    close_all_but({0, 1, 2})
    os.chdir(request["cwd"])
    Path("/proc/self/comm").write_text(name_of_forked(os.getpid()))  # as `Command.pids` finds its children
    random.seed()
    np.random.seed()
    _as_executed(request["environment"])


def _as_executed(environment: dict[str, str]) -> None:
    """Set what a new interpreter has, with these variables."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "stdout"), (2, "stderr")):
        own = getattr(sys, f"__{name}__")
        stream = open(number, "w", encoding=own.encoding, errors=own.errors, closefd=False)  # noqa: SIM115
        stream.buffer.raw.name = f"<{name}>"
        at_once = bool(environment.get("PYTHONUNBUFFERED"))
        by_line = not at_once and (number == 2 or stream.isatty())
        stream.reconfigure(line_buffering=by_line, write_through=at_once)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(_set_by_imports | environment)
    sys.path[0] = os.getcwd()  # noqa: PTH109 - a text


def _limit_threads() -> None:
    """Give numpy's libraries, which were imported with one thread, as many as they would have started."""
    import threadpoolctl

    from dtrain.process.threads import NUMPY_LIMITS

    limits = (os.environ.get(name, "").partition(",")[0] for name in NUMPY_LIMITS)
    threadpoolctl.threadpool_limits(int(next(filter(str.isdecimal, limits), len(os.sched_getaffinity(0)))))


def _execute(path: str, words: list[str], environment: dict[str, str]) -> None:
    """Stand for `os.execve` where a command becomes its task."""
    if tuple(words[1:3]) != TASK:
        _EXECVE(path, words, environment)
    raise Executed(words[3:], environment)


def main() -> None:
    """Serve; run each request as `python` would."""
    request, descriptors = _serve(sys.argv[1])
    from dtrain.task import __main__ as task
    from dtrain_cli import main as command

    _become(request, descriptors)
    os.execve = _execute
    sys.argv = [command.__file__, *request["words"][1 + len(COMMAND) :]]
    try:
        command.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except Executed as executed:
        words, environment = executed.args
        _as_executed(environment)
        _limit_threads()
        code = task.main(words)
    task._end(code)


_EXECVE = os.execve

if __name__ == "__main__":
    main()
