"""Commands of dtrain that tests start are forked from a process that has imported what they import.

`python -m dtrain_cli.main ...` takes half a second of a processor to import, and the tests start more than a
thousand. After `start_warm` each is a fork instead, and a child of this process as before: with the words, the
environment, the folder, the standard files and the end that `subprocess.Popen` promises. A command for which more
is asked, such as a variable that Python reads as it starts, is started anew; and so is every one where
DTRAIN_TEST_COLD is set, in the environment of the tests or of that command.
"""

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
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLD = "DTRAIN_TEST_COLD"
COMMANDS = ("dtrain_cli.main", "dtrain.task")
NOT_BEFORE = (".main", ".__main__", ".by_library")
"""How modules end that are run as programs, or are large and belong to few commands."""
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
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import runpy, warm_commands; "
            f"del sys.path[0]; runpy._run_module_as_main(warm_commands.serve({there.fileno()}))"
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
            assert self._process.poll() is None, (
                f"the process that forks has ended: {self._process.returncode}"
            )
            socket.send_fds(self._connection, [request], files)
            answer = self._connection.recv(100)
        assert answer, f"the process that forks has ended: {self._process.wait()}"
        return int(answer)


@functools.cache
def _server() -> _Server:
    return _Server()


# In the process that forks


def serve(descriptor: int) -> str:
    """Fork for each request; return in the children alone, with the name of the module to run."""
    for module in _modules():
        importlib.import_module(module)
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
    return _become(*json.loads(request), files)


def _modules() -> list[str]:
    """Return the modules of the commands, and those that a task has before its program; none has a thread."""
    import dtrain_cli

    found = [module.name for module in pkgutil.walk_packages(dtrain_cli.__path__, "dtrain_cli.")]
    task = (
        "dtrain.process.allocation",
        "dtrain.process.private_variables",
        "dtrain.runs.notices",
        "dtrain.task.program",
    )
    return [*task, *(name for name in found if not name.endswith(NOT_BEFORE))]


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


def _become(words: list[str], environment: dict[str, str], folder: str, files: list[int]) -> str:
    """Make this process what `python -m WORDS` would find itself to be; return the module's name."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[0] = str(Path.cwd())
    sys.argv[:] = words
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return words[0]


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
