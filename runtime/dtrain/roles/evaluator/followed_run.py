"""The checkpoints of a run, as an evaluator finds them."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError
from dtrain.process.clock import SYSTEM, Clock
from dtrain.runs.files import RunFiles

FETCH_S = 2.0
LATE_S = 5.0
"""How late a disk that several machines have may show a new folder."""


class FollowedRun:
    """The leader's run directory; where it is not visible, a copy of the newest from `checkpoint.remote`."""

    def __init__(
        self,
        section: CheckpointSection,
        visible: Callable[[], Path | str | None],
        warn: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin.

        Args:
            section: says whether there are copies.
            visible: the leader's directory; None until it is known.
            warn: told of copies that cannot be read, and of a disk that is not this machine's.
            clock: the time.
        """
        self._remote = checkpoints.remote_copies(section.remote)
        self._visible = visible
        self._clock = clock
        self._warn = warn
        self._own = TemporaryDirectory(prefix="dtrain-evaluator-") if self._remote else None
        self._next_s = 0.0
        self._missed_s: float | None = None
        self._told = False

    def __call__(self, ended: bool) -> Path | str | None:
        """Return the directory of checkpoints; copies from before the end of training are in it."""
        known = self._visible()
        if known is None or RunFiles(Path(known)).checkpoints.is_dir():
            return known
        if self._own is None:
            self._look_for(Path(known))
            return known
        if ended or self._clock.now() >= self._next_s:
            self._next_s = self._clock.now() + FETCH_S
            self._fetch(RunFiles(Path(self._own.name)).checkpoints)
        return Path(self._own.name)

    def _look_for(self, directory: Path) -> None:
        """Say once that the leader's disk is not this machine's, while there is time to do something."""
        now_s = self._clock.now()
        self._missed_s = self._missed_s or now_s
        if not self._told and now_s - self._missed_s >= LATE_S and not directory.is_dir():
            self._told = True
            self._warn(
                f"the leader saves in {directory}, and {directory} is not on this machine: nothing can be "
                "evaluated; set checkpoint.remote to a URL, or let both have one disk"
            )

    def _fetch(self, folder: Path) -> None:
        try:
            if self._remote is not None and self._remote.fetch(folder):
                checkpoints.rotate(folder, keep=1, keep_every_n_hours=None, now=self._clock.wall())
        except CheckpointError as error:
            self._warn(str(error))
