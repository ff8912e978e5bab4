"""The second place of the newest checkpoint of a run on hosts: the launcher's run directory."""

import shutil
from collections.abc import Iterator, Mapping

from dtrain.runs.files import RunFiles
from dtrain_cli.agent.copies import ArrivingCheckpoint, checkpoint_parts
from dtrain_cli.agent.messages import AllMade, Fetch, MadePart


class SecondPlace:
    """The copy of one run's newest checkpoint.

    Attributes:
        step: of the copy; None: there is none.
        asked: the host and the step of the checkpoint that is being copied; None: none is.
    """

    def __init__(self, files: RunFiles) -> None:
        self.step = files.newest_step
        self._files = files
        self.asked: tuple[str, int] | None = None
        self._tried: int | None = None
        self._why: str | None = None
        self._arriving = ArrivingCheckpoint(files.checkpoints)

    def due(self, saved: Mapping[str, int]) -> tuple[str, Fetch] | None:
        """Return the order to send a newer checkpoint, and its host; `saved` has the newest step of each."""
        host = max(saved, key=saved.__getitem__, default=None)
        if host is None or self.asked is not None or saved[host] == self._tried:
            return None
        self._tried = saved[host]
        self.asked = host, saved[host]
        return host, Fetch(saved[host])

    def take(self, host: str, part: MadePart | AllMade) -> str | None:
        """Write what has arrived; return why there is no copy, in words, where that is new."""
        asked_host, step = self.asked or (None, None)
        if host != asked_host or (isinstance(part, AllMade) and part.step != step):
            return None  # the launcher has not asked for it
        try:
            problems = self._arriving.take(part)
        except OSError as error:
            self._arriving.drop()
            problems = [f"it cannot be written: {error.strerror}"]
        if isinstance(part, MadePart):
            return None
        self.asked = None
        if problems:
            told, self._why = self._why, problems[0]
            return None if told == self._why else f"the newest checkpoint has no copy here: {self._why}"
        if self.step not in (None, part.step):
            shutil.rmtree(self._files.checkpoints / f"ckpt-{self.step}", ignore_errors=True)
        self.step = part.step
        return None

    def forget(self, host: str) -> None:
        """Wait no more for a host whose agent is gone."""
        if self.asked is not None and self.asked[0] == host:
            self.asked = self._tried = None
            self._arriving.drop()

    def parts(self) -> Iterator[MadePart | AllMade]:
        """Yield the copy part by part, for a host that has none."""
        if self.step is not None:
            yield from checkpoint_parts(self._files.checkpoints, self.step)
