"""The newest checkpoint of a run as it travels between a host and the launcher.

It is sent file by file, and arrives whole or not at all.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from dtrain_cli.agent.made_files import FetchedFiles, made_parts
from dtrain_cli.agent.messages import AllMade, MadePart

COPIED_BYTES_MAX = 256 << 20
"""A larger checkpoint has no second place: it would fill the connection that keeps the tasks alive."""
_ASIDE = ".tmp-ckpt-0-0"
"""The name of what has not arrived yet; after a crash the leader sweeps it away."""


def checkpoint_parts(checkpoints: Path, step: int) -> Iterator[MadePart | AllMade]:
    """Yield the checkpoint of a step part by part, and the end, which says why it is not whole."""
    folder = checkpoints / f"ckpt-{step}"
    try:
        nbytes = sum(path.stat().st_size for path in folder.iterdir())
    except OSError as error:
        yield AllMade([f"it cannot be read: {error.strerror}"], step)
        return
    if nbytes > COPIED_BYTES_MAX:
        yield AllMade([f"it has {nbytes >> 20} MiB, and at most {COPIED_BYTES_MAX >> 20} are copied"], step)
        return
    for part in made_parts(folder):
        yield AllMade(part.problems, step) if isinstance(part, AllMade) else part


class ArrivingCheckpoint:
    """A checkpoint that arrives below a folder, and gets its name there when it is whole."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._files: FetchedFiles | None = None

    def take(self, part: MadePart | AllMade) -> list[str]:
        """Write a part; return why the checkpoint has not arrived, after the last one.

        Raises:
            OSError: it cannot be written.
        """
        aside = self._checkpoints / _ASIDE
        if self._files is None:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            self._files = FetchedFiles(aside, 2 * COPIED_BYTES_MAX)
        if isinstance(part, MadePart):
            self._files.take(part)
            return []
        problems = [*part.problems, *self._files.problems]
        self.drop()
        if not problems:
            target = self._checkpoints / f"ckpt-{part.step}"
            shutil.rmtree(target, ignore_errors=True)
            aside.rename(target)
        return problems

    def drop(self) -> None:
        """Expect another one: the sender of this one is gone."""
        if self._files is not None:
            self._files.drop()
        self._files = None
