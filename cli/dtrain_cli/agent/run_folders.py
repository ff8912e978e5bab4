"""The place of a run on its host: a folder with its files, the code that was sent, and links to that code."""

import errno
import os
import tempfile
from pathlib import Path

from dtrain.errors import DtrainError, RunError
from dtrain.runs.files import default_runs_dir
from dtrain_cli.agent.messages import CodePart, CodeThere, WantCode
from dtrain_cli.code import discard, link_farm, unpack

CODE = "code"
"""The folder of a run's directory with the code, by its digest."""
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


def _plain(name: str) -> str:
    letters = (letter if letter.isalnum() or letter in "-_.@" else "_" for letter in name)
    return "".join(letters).lstrip(".") or "_"


class SentCode:
    """The archive that is being received."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def receive(self, order: WantCode | CodePart, run_dir: Path | None) -> CodeThere | None:
        assert run_dir is not None, "BeginRun comes first"
        store = run_dir / CODE
        try:
            if isinstance(order, CodePart):
                self._parts.append(order.data)
                if not order.last:
                    return None
                data = b"".join(self._parts)
                self._parts.clear()
                unpack(data, order.digest, store)
            if not (store / order.digest).is_dir():
                return CodeThere(None)
            work = run_dir / WORK
            link_farm(store / order.digest, work, store)
            for other in store.iterdir():  # of an earlier launch
                if other.name != order.digest:
                    discard(other)
            return CodeThere(str(work))
        except DtrainError as error:
            return CodeThere(None, str(error))
        except OSError as error:
            return CodeThere(None, f"the code cannot be written to {store}: {error.strerror}")
