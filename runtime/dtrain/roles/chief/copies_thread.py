"""Copies checkpoints to their second home in a thread of its own: a slow store keeps nobody from saving,
restoring, training.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError, CopiesTakenError

PATIENCE_S = 600.0
"""How long one upload may take when somebody waits for it."""
RETRY_S = 60.0
"""For how long the last checkpoint is tried again."""
PAUSE_S = 1.0


class CopiesThread:
    """Keeps the copies at one URL equal to a local directory, as far as the store allows."""

    def __init__(
        self, remote: checkpoints.RemoteCopies, directory: Path, warn: Callable[[str], None]
    ) -> None:
        """Begin; `warn` is told of copies that could not be written while training goes on."""
        self._remote = remote
        self._directory = directory
        self._warn = warn
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._error: CheckpointError | None = None
        self._awaited = False
        threading.Thread(target=self._run, name="copies", daemon=True).start()

    @classmethod
    def of(
        cls, section: CheckpointSection, directory: Path, warn: Callable[[str], None]
    ) -> "CopiesThread | None":
        """As the spec says; None if it names no second home."""
        remote = checkpoints.remote_copies(section.remote)
        return None if remote is None else cls(remote, directory, warn)

    def copy(self) -> None:
        """Ask for copies of the directory's changes; return at once."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def finish(self, retry_s: float = 0.0) -> None:
        """Copy what there is now, and wait for it; try again for so long.

        Raises:
            CheckpointError: it cannot be copied.
        """
        deadline = time.monotonic() + retry_s
        self._awaited = True
        try:
            while (error := self._copied()) is not None:
                if time.monotonic() >= deadline or isinstance(error, CopiesTakenError):
                    raise type(error)(f"{error}; the checkpoints themselves are in {self._directory}")
                time.sleep(PAUSE_S)
        finally:
            self._awaited = False

    def _copied(self) -> CheckpointError | None:
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._done >= asked, PATIENCE_S):
                return CheckpointError(f"copying to {self._remote.url} takes longer than {PATIENCE_S:g} s")
            return self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._done)
                asked = self._asked
            error = None
            try:
                self._remote.upload(self._directory)
            except CheckpointError as found:
                error = found
                if not self._awaited:
                    self._warn(f"{error}; it is tried again with the next checkpoint")
            with self._changed:
                self._done, self._error = asked, error
                self._changed.notify_all()
