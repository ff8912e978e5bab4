"""The places of an agent on its host: a folder for each run, and the store of the code that was sent."""

import errno
import os
import tempfile
from pathlib import Path

from dtrain.errors import RunError
from dtrain.runs.files import default_runs_dir

WORK = "work"
"""The folder of a run's directory in which its tasks run."""
LOCK = "agent.lock"
"""The file of a run's directory that the agent of the run holds."""
ROOM_BYTES = 1 << 16
"""The least that the first statuses and lines of tasks need."""


def run_folder(host: str, run: str) -> Path:
    """Return the directory of a run on a host; `host` is the launcher's name for it."""
    return default_runs_dir().with_name("hosts") / _plain(host) / _plain(run)


def check_room(folder: Path) -> None:
    """Refuse a folder on a disk that is full: the tasks could not even say that they are up.

    Raises:
        RunError: it has no room.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"{error.strerror} in {folder}; make room there") from None


def code_store() -> Path:
    """Return the folder in which the code of all runs lies."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dtrain" / "code"


def _plain(name: str) -> str:
    """Return a name that is one folder's."""
    letters = (letter if letter.isalnum() or letter in "-_.@" else "_" for letter in name)
    return "".join(letters).lstrip(".") or "_"
