"""The place of a run on its host: a folder with its files, the code that was sent, and links to that code."""

import os
import tempfile
from pathlib import Path

from dtrain.errors import DtrainError
from dtrain.runs.files import default_runs_dir
from dtrain.runs.json_file import FULL
from dtrain_cli.agent.messages import CodePart, Done
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


def no_room(folder: Path) -> str | None:
    """Return that the disk is full, if it is: the tasks could not even say that they are up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        return f"{error.strerror} in {folder}; make room there" if error.errno in FULL else None
    return None


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _plain(name: str) -> str:
    letters = (letter if letter.isalnum() or letter in "-_.@" else "_" for letter in name)
    return "".join(letters).lstrip(".") or "_"


class SentCode:
    """The archive that is being received."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def receive(self, order: CodePart, run_dir: Path) -> Done | None:
        """Take a part; after the last one lay out the code in the run's directory, and say how that went."""
        self._parts.append(order.data)
        if not order.last:
            return None
        data, store = b"".join(self._parts), run_dir / CODE
        self._parts.clear()
        try:
            code = unpack(data, order.digest, store)
            link_farm(code, run_dir / WORK, store)
            for other in store.iterdir():
                if other != code:  # of an earlier launch
                    discard(other)
        except (DtrainError, OSError) as error:
            where = f"the code cannot be written to {store}: "
            return Done(f"{where}{error.strerror}" if isinstance(error, OSError) else str(error))
        return Done()
