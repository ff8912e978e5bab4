"""The places of an agent on its host: a folder for each run, and the store of the code that was sent.

Code is sent once a host, kept by its digest, and laid out for each run; what no run uses any more is
removed. `.users` in the store has a file for each use, named by the digest and the run's directory on its
host: homes are one disk on many clusters, so that the runs of several hosts use one store.
"""

import contextlib
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtrain.errors import DtrainError, RunError
from dtrain.process import file_lock
from dtrain.runs.files import default_runs_dir
from dtrain_cli.agent.messages import CodePart, CodeThere, WantCode
from dtrain_cli.code import digest_of, discard, link_farm, unpack

WORK = "work"
"""The folder of a run's directory in which its tasks run."""
LAUNCHER = "detached launcher"
"""Stands for a host in the folder of a launcher that was started on one of the hosts."""
LOCK = "agent.lock"
"""The file of a run's directory that the agent of the run holds."""
ROOM_BYTES = 1 << 16
"""The least that the first statuses and lines of tasks need."""


def run_folder(host: str, run: str) -> Path:
    return default_runs_dir().with_name("hosts") / _plain(host) / _plain(run)


def check_room(folder: Path) -> None:
    """Raise a `RunError` if the disk is full: the tasks could not even say that they are up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"{error.strerror} in {folder}; make room there") from None


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def code_store() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dtrain" / "code"


def _plain(name: str) -> str:
    letters = (letter if letter.isalnum() or letter in "-_.@" else "_" for letter in name)
    return "".join(letters).lstrip(".") or "_"


class SentCode:
    """The archive that is being received."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def receive(self, order: WantCode | CodePart, run_dir: Path | None) -> CodeThere | None:
        assert run_dir is not None, "BeginRun comes first"
        store = code_store()
        if isinstance(order, CodePart):
            self._parts.append(order.data)
            if not order.last:
                return None
        try:
            with locked(store):
                if isinstance(order, CodePart):
                    data = b"".join(self._parts)
                    self._parts.clear()
                    unpack(data, order.digest, store)
                if not (store / order.digest).is_dir():
                    return CodeThere(None)
                work = run_dir / WORK
                link_farm(store / order.digest, work, store)
                use(store, order.digest, run_dir)
                return CodeThere(str(work))
        except DtrainError as error:
            return CodeThere(None, str(error))
        except OSError as error:
            return CodeThere(None, f"the code cannot be written to {store}: {error.strerror}")


_USERS = ".users"
_LOCK = ".lock"
LOCK_S = 25.0
"""Less than a launcher waits for the answer."""


@contextlib.contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the lock of a store; raise a `WaitTimeoutError` if another process holds it for over `LOCK_S`."""
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_lock(store / _LOCK)
    try:
        with file_lock.locked(descriptor, LOCK_S, f"lay out or remove code in {store}"):
            yield
    finally:
        os.close(descriptor)


def use(store: Path, digest: str, run_dir: Path) -> None:
    users = store / _USERS
    users.mkdir(mode=0o700, exist_ok=True)
    own = users / f"{digest}.{_user(run_dir)}"
    own.touch(mode=0o600)
    _release(store, [each for each in users.glob(f"*.{_user(run_dir)}") if each != own])


def release(store: Path, run_dir: Path) -> None:
    if (store / _USERS).is_dir():
        with locked(store):
            _release(store, list((store / _USERS).glob(f"*.{_user(run_dir)}")))


def _release(store: Path, uses: list[Path]) -> None:
    for each in uses:
        each.unlink(missing_ok=True)
        digest = each.name.partition(".")[0]
        if not any((store / _USERS).glob(f"{digest}.*")):
            discard(store / digest)


def _user(run_dir: Path) -> str:
    return digest_of(os.fsencode(f"{socket.gethostname()}:{run_dir}"))
