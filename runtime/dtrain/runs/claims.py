"""Claims of runs on paths: a second run that would write a path is refused while the first one lives.

A directory in which runs write has a file `.dtrain-runs`. The leader of a run locks one byte of it for each
path that it writes, and a line in it names the run of each process. The locks are fcntl's record locks: the
kernel releases them when the process ends in any way; forked children do not hold them; and they work over
NFS. The last leader that ends in order removes the file.
"""

import atexit
import fcntl
import os
import struct
import time
from hashlib import sha256
from pathlib import Path

import msgspec

from dtrain.errors import RunInUseError

NAME = ".dtrain-runs"
RETRY_S = 0.01
ENDING_S = 5.0
"""The longest wait for a process of the same run, killed, to let go of what it has claimed."""
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = "hhqqi"


class _Held(msgspec.Struct):
    """The locks of this process.

    Attributes:
        descriptors: of the open files, by directory. A file is opened once: closing any descriptor of it
            releases all locks.
    """

    pid: int = 0
    descriptors: dict[Path, int] = msgspec.field(default_factory=dict)


_held = _Held()


def claim(path: str | os.PathLike[str], run_id: str | None) -> None:
    """Let a run alone write `path` until this process ends, else raise a `RunInUseError`. A URL, and a
    process that is no run (None), claim nothing.
    """
    if run_id is None or "://" in str(path):
        return
    if _held.pid != os.getpid():
        _held.pid = os.getpid()
        _held.descriptors = {}
        atexit.register(_leave, os.getpid())
    whole = Path(os.path.realpath(path))
    until_s = time.monotonic() + ENDING_S
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        # A task of this run that led before this one is being ended by the kernel.
        while (holder := _lock(whole, run_id)) is not None and time.monotonic() < until_s:
            if not holder.startswith(f"run {run_id} "):
                break
            time.sleep(RETRY_S)
    except OSError:  # no such directory, or a read-only one: the attempt to write there will say so
        return
    if holder is not None:
        raise RunInUseError(
            f"{path} is written by {holder}, which has not ended; "
            "give this run another path or working directory, or stop that one (`dtrain runs` lists them)"
        )


def _lock(path: Path, run_id: str) -> str | None:
    """Lock a path's byte; return its holder if it is taken. An `OSError` says that locks do not work."""
    byte = int.from_bytes(sha256(os.fsencode(path.name)).digest()[:7])
    while True:
        descriptor = _opened(path.parent)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except BlockingIOError:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            kind, _, _, length, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
            if kind != fcntl.F_UNLCK and length == 1:
                return _run_of(pid, descriptor)
            time.sleep(RETRY_S)  # it was just released, or the whole file is locked for its removal
            continue
        if os.fstat(descriptor).st_nlink:
            if f"{os.getpid()} {run_id}\n".encode() not in _content(descriptor):
                os.write(descriptor, f"{os.getpid()} {run_id}\n".encode())
            return None
        os.close(_held.descriptors.pop(path.parent))  # it was removed between its opening and its locking


def _opened(directory: Path) -> int:
    if directory not in _held.descriptors:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        _held.descriptors[directory] = os.open(directory / NAME, flags, 0o666)
    return _held.descriptors[directory]


def _run_of(pid: int, descriptor: int) -> str:
    lines = [line.split(maxsplit=1) for line in _content(descriptor).decode(errors="replace").splitlines()]
    names = [words[1] for words in lines if len(words) == 2 and words[0] == str(pid)]
    return f"run {names[-1]} (process {pid})" if names else "another run"  # such as one of another container


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _leave(pid: int) -> None:
    """Remove this process's files that no other process uses; a forked child has none."""
    if os.getpid() != pid:
        return
    for directory, descriptor in _held.descriptors.items():
        try:
            # fails if another process holds a byte of it
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), (directory / NAME).stat()):
                (directory / NAME).unlink()
        except OSError:
            continue
    _held.descriptors.clear()
