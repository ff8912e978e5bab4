"""Commands of dtrain that tests start are forked from a process that has imported what they import.

`python -m dtrain_cli.main ...` takes a quarter of a second of a processor to import, the task that it may become
half a second more, and the tests start more than a thousand. After `start_warm` each is a fork instead, and a
child of this process as before: with the words, the environment, the folder, the standard files and the end that
`subprocess.Popen` promises. A command that executes its task becomes it without an interpreter of its own.

A command for which more is asked, such as a variable that Python reads as it starts, is started anew; and so is
every one where DTRAIN_TEST_COLD is set, in the environment of the tests or of that command. What differs between
interpreters (the order of sets) shows only in those.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import platform
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLD = "DTRAIN_TEST_COLD"
NETWORK = "DTRAIN_TEST_NETWORK"
"""Names a process in whose namespaces a forked command runs: its network, its mounts, its host name."""
TASK = "dtrain.task"
COMMANDS = ("dtrain_cli.main", TASK)
NOT_BEFORE = (".main", ".__main__", ".by_library")
"""How modules end that are run as programs, or are large and belong to few commands."""
IMPORTED_LATER = ("encodings.idna", "rich.table", "ruamel.yaml")
"""Modules of others that commands import where they need them, and most of them do."""
READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
PLAIN = {
    "preexec_fn": None,
    "executable": None,
    "shell": False,
    "start_new_session": False,
    "process_group": -1,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "restore_signals": True,
    "pass_fds": (),
}
"""What a command may not ask of Popen otherwise, to be forked."""
REQUEST_BYTES_MAX = 100_000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE_PARENT = 0x8000

# In the process of the tests


def start_warm() -> None:
    """Let `subprocess.Popen` in this process fork the commands of dtrain."""
    start = subprocess.Popen._execute_child
    signature = inspect.signature(start)

    @functools.wraps(start)
    def warm(self: subprocess.Popen[Any], *arguments: Any) -> None:
        asked = signature.bind(self, *arguments).arguments
        request = _request(asked)
        if request is None:
            return start(self, *arguments)
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        try:
            self.pid = _server().fork(request, [n if end < 0 else end for n, end in enumerate(ends)])
            self._child_created = True
        finally:
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[name] for name in pipes))
        return None

    subprocess.Popen._execute_child = warm  # type: ignore[method-assign]


def _request(asked: Mapping[str, Any]) -> bytes | None:
    """Return what to tell the process that forks; None for what must be started anew."""
    words = asked["args"]
    environment = dict(os.environ if asked["env"] is None else asked["env"])
    if CLONE is None or COLD in environment or COLD in os.environ or not isinstance(words, list | tuple):
        return None
    words = [os.fsdecode(word) for word in words]
    if words[:2] != [sys.executable, "-m"] or words[2] not in COMMANDS:
        return None
    if any(asked.get(name, value) != value for name, value in PLAIN.items()):
        return None
    if _read_at_the_start(environment) != _server().read_at_the_start:
        return None
    folder = str(Path.cwd() / os.fsdecode(asked["cwd"] or "."))
    request = json.dumps([words[2:], environment, folder]).encode()
    return request if len(request) <= REQUEST_BYTES_MAX else None


def _read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that Python or the loader reads as it starts."""
    found = {
        name: value for name, value in environment.items() if value and name.startswith(READ_AT_THE_START)
    }
    if "PYTHONPATH" in found:
        folders = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(each).resolve()) for each in folders if each)
    return found


class _Server:
    """The process that forks. It ends when this one does, and its connection with it."""

    def __init__(self) -> None:
        self.read_at_the_start = _read_at_the_start(os.environ)
        self._connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        program = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import warm_commands; "
            f"del sys.path[0]; warm_commands.run(warm_commands.serve({there.fileno()}))"
        )
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, **self.read_at_the_start},
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )

    def fork(self, request: bytes, files: list[int]) -> int:
        """Have a command begin with these standard files; return its pid."""
        with self._lock:
            socket.send_fds(self._connection, [request], files)
            answer = self._connection.recv(100)
        assert answer, f"the process that forks has ended: {self._process.wait()}"
        return int(answer)

    def has_ended(self) -> bool:
        """Return whether it was killed, by a test of what kills all children."""
        return self._process.poll() is not None


@functools.cache
def _first_server() -> _Server:
    return _Server()


def _server() -> _Server:
    if _first_server().has_ended():
        _first_server.cache_clear()
    return _first_server()


# In the process that forks


class Executed(BaseException):
    """What a command executes next, with which variables; it unwinds all that was called before."""


_of_imports: dict[str, str] = {}
"""Variables that importing sets, as it does in a task."""


def serve(descriptor: int) -> str:
    """Fork for each request; return in the children alone, with the name of the module to run."""
    at_the_start, before = _read_at_the_start(os.environ), {*os.environ}
    _import_all()
    _of_imports.update({name: value for name, value in os.environ.items() if name not in before})
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a thread would be missing in the children"
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as requests:
        while True:
            request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
            if not request:
                os._exit(0)
            if not (pid := _fork_a_sibling()):
                break
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())
    words, environment, folder = json.loads(request)
    _become(environment, folder, files)
    execute = os.execve

    def become_task(path: str, words: list[str], environment: dict[str, str]) -> None:
        if words[1:3] != ["-m", TASK] or _read_at_the_start(environment) != at_the_start:
            execute(path, words, environment)
        raise Executed(words[2:], environment)

    os.execve = become_task  # type: ignore[assignment]
    sys.argv[:] = words
    return words[0]  # type: ignore[no-any-return]


def run(module: str) -> None:
    """Run a module as `python -m` does, and then the task that it executes, if it does; end as Python does."""
    code: object = None
    try:
        try:
            runpy._run_module_as_main(module)
        except Executed as executed:
            sys.argv[:], environment = executed.args
            _as_executed(_of_imports | environment)
            _limit_threads()
            sys.modules["__main__"] = types.ModuleType("__main__")
            runpy._run_module_as_main(sys.argv[0])
    except SystemExit as ended:
        if not isinstance(code := ended.code, int | None):
            raise
    _end(code or 0)


def _end(code: int) -> None:
    """End as Python does - threads, exit functions, output - but for what it does to every module last: that would
    copy all pages of what was imported before the fork, which takes a tenth of a second.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            sys.exit(code)  # Python says what is wrong
    os._exit(code & 0xFF)


def _import_all() -> None:
    """Import what commands import, and what tasks have before their program."""
    import dtrain_cli
    from dtrain.task import fork_server

    fork_server.import_all()
    found = [module.name for module in pkgutil.walk_packages(dtrain_cli.__path__, "dtrain_cli.")]
    found += [*fork_server.STRATEGY_IMPORTS.values(), *fork_server.GRPC_IMPORTS, *IMPORTED_LATER]
    for module in found:
        if not module.endswith(NOT_BEFORE):
            importlib.import_module(module)


def _fork_a_sibling() -> int:
    """Fork as `os.fork` does, but a child of this process's parent."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    system.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid: int = system.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    assert pid >= 0, "clone has failed"
    return pid


def _become(environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Give this process what a new one has."""
    if host := environment.pop(NETWORK, ""):
        enter_host(int(host))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    Path("/proc/self/comm").write_text(f"dtrain-{os.getpid()}")  # by which tests find what it forks
    random.seed()
    sys.modules["numpy"].random.seed()  # ruff's NPY002 is about numbers that a program draws
    _as_executed(environment)


def _as_executed(environment: Mapping[str, str]) -> None:
    """Set what a new interpreter has."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = str(Path.cwd())
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _limit_threads() -> None:
    """Give numpy's libraries, which were imported with one thread, as many as they would have started."""
    import threadpoolctl

    from dtrain.process.resources import NUMPY_LIMITS

    limits = (os.environ.get(name, "").partition(",")[0] for name in NUMPY_LIMITS)
    threadpoolctl.threadpool_limits(int(next(filter(str.isdecimal, limits), len(os.sched_getaffinity(0)))))


def enter_host(pid: int, kinds: Sequence[str] = ("net", "uts", "mnt")) -> None:
    """Have this process use the network, the host name and the files of another one; the latter needs that it
    has one thread.
    """
    for kind in kinds:
        with Path(f"/proc/{pid}/ns/{kind}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {kind}")


def _stream(number: int, former: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return the stream of a standard file as Python makes it."""
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = former.name
    lines = not former.write_through and (number == 2 or raw.isatty())
    if number == 0:
        file: Any = io.BufferedReader(raw)
    else:
        file = raw if former.write_through else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        file, former.encoding, former.errors, line_buffering=lines, write_through=former.write_through
    )
    stream.mode = former.mode
    return stream
