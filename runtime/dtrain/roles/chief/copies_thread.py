"""A thread that copies checkpoints to a remote store: a slow store delays neither saving nor training."""

from collections.abc import Callable
from pathlib import Path

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError, CopiesTakenError
from dtrain.process.clock import SYSTEM, Clock

PATIENCE_S = 600.0
"""The longest time for one upload when a caller waits for it."""
RETRY_S = 60.0
"""The time for which an upload of the last checkpoint is repeated."""
PAUSE_S = 1.0


class CopiesThread:
    """Keeps the copies at one URL equal to a local directory, as far as the store allows."""

    def __init__(
        self,
        remote: checkpoints.RemoteCopies,
        directory: Path,
        warn: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin; `warn` is told of copies that could not be written while training goes on."""
        self._remote = remote
        self._directory = directory
        self._warn = warn
        self._clock = clock
        self._wake = clock.event()
        self._news = clock.event()
        self._asked = self._done = 0
        self._error: CheckpointError | None = None
        self._awaited = False
        clock.start(self._run, "copies")

    @classmethod
    def of(
        cls, section: CheckpointSection, directory: Path, warn: Callable[[str], None], clock: Clock = SYSTEM
    ) -> "CopiesThread | None":
        """Return the copies that the spec asks for; None if it names no remote store."""
        remote = checkpoints.remote_copies(section.remote)
        return None if remote is None else cls(remote, directory, warn, clock)

    def copy(self) -> None:
        """Ask for copies of the directory's changes; return at once."""
        self._asked += 1
        self._wake.set()

    def finish(self, retry_s: float = 0.0) -> None:
        """Copy what there is now, with repetitions; raise a `CheckpointError` in the end."""
        deadline = self._clock.now() + retry_s
        self._awaited = True
        try:
            while (error := self._copied()) is not None:
                if self._clock.now() >= deadline or isinstance(error, CopiesTakenError):
                    raise type(error)(f"{error}; the checkpoints themselves are in {self._directory}")
                self._clock.sleep(PAUSE_S)
        finally:
            self._awaited = False

    def _copied(self) -> CheckpointError | None:
        self.copy()
        asked, deadline = self._asked, self._clock.now() + PATIENCE_S
        while self._done < asked:
            if not self._news.wait(deadline - self._clock.now()):
                return CheckpointError(f"copying to {self._remote.url} takes longer than {PATIENCE_S:g} s")
            self._news.clear()
        return self._error

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            asked = self._asked
            error = None
            try:
                self._remote.upload(self._directory)
            except CheckpointError as found:
                error = found
                if not self._awaited:
                    self._warn(f"{error}; it is tried again with the next checkpoint")
            self._error = error
            self._done = asked
            self._news.set()
