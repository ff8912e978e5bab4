"""A watch over code that reads hostile files: no other code runs, nothing is opened elsewhere, no time or memory is lost."""

import contextlib
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
CASE_S = 15
CASE_KB = 40_000
_READABLE = (
    *(sys.prefix, sys.base_prefix, str(ROOT), "/proc/", "/usr/share/zoneinfo", "/etc/localtime", "<frozen"),
    *(
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        str(Path(np.__file__).parents[1]),
    ),
)
_FORBIDDEN = (
    *(
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "pty.spawn",
    ),
    *(
        "socket.__new__",
        "socket.connect",
        "socket.bind",
        "socket.getaddrinfo",
        "pickle.find_class",
        "ctypes.dlopen",
        "os.kill",
        "signal.pthread_kill",
        "shutil.",
        "webbrowser.",
    ),
    *("os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown", "os.symlink", "os.link", "os.truncate"),
    *("os.putenv", "code.__new__", "sys.addaudithook", "ftplib.", "http.", "urllib.", "sqlite3."),
)
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
_watch: dict[str, Any] = {"folder": None, "seen": [], "writes": False}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    folder = _watch["folder"]
    if folder is None:
        return
    if event.startswith(_CHANGES) and _watch["writes"]:
        paths = [os.fspath(each) for each in arguments if isinstance(each, str | bytes | Path)]
        named = all(str(each).startswith(folder) for each in paths)
        if not named and not (isinstance(arguments[-1], int) and arguments[-1] >= 0):  # else below a folder
            _watch["seen"].append((event, repr(arguments)[:200]))
    elif event.startswith(_FORBIDDEN):
        _watch["seen"].append((event, repr(arguments)[:200]))
    elif event == "exec" and not arguments[0].co_filename.startswith(_READABLE):
        _watch["seen"].append((event, arguments[0].co_filename))
    elif event == "open" and isinstance(arguments[0], str | bytes):
        path = arguments[0].decode(errors="replace") if isinstance(arguments[0], bytes) else arguments[0]
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        inside = path.startswith(folder) or (
            _watch["writes"] and "/" not in path
        )  # by the folder's descriptor
        if not inside and (flags & 3 or not path.startswith(_READABLE)) and not path.isdecimal():
            _watch["seen"].append((event, path))


sys.addaudithook(_hook)


class Late(BaseException):
    """A case has taken more than `CASE_S`."""


@contextlib.contextmanager
def watched(folder: Path, writes: bool = False) -> Iterator[None]:
    """Fail if the code within does what no reader of a file below `folder` has to do.

    With `writes` it may change and remove files there.
    """
    _watch["folder"], _watch["seen"], _watch["writes"] = str(folder), [], writes
    try:
        yield
    finally:
        _watch["folder"] = None
    assert not _watch["seen"], _watch["seen"]


def _late(*_: object) -> None:
    raise Late(f"a case takes more than {CASE_S} s")


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail if the code within takes more than `CASE_S` and `CASE_KB`. Source: proc_pid_clear_refs(5)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _kilobytes("VmRSS")
    former = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert _kilobytes("VmHWM") - before <= CASE_KB, f"{_kilobytes('VmHWM') - before} kB"


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Let the code within fail where it takes a gigabyte more, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
