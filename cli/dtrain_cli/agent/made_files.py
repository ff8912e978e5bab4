"""The files that tasks have made in the working directory of their run, as they are sent and as they arrive.

The links to the code that was sent are not among them, nor are hidden files, compiled modules of Python, and
links that a program has made.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from dtrain_cli.agent.messages import AllMade, MadePart

PART_BYTES = 1 << 18
"""The largest part of a file in one message."""
_COMPILED = "__pycache__"


def made_parts(work: Path) -> Iterator[MadePart | AllMade]:
    """Yield each file below a working directory part by part, in the order of their names, and the end."""
    problems = []
    for path, name in _made(work):
        try:
            yield from _parts(path, name)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        except UnicodeEncodeError:
            problems.append(f"{os.fsencode(name)!r} is no name in UTF-8")
    yield AllMade(problems)


def is_fetched(name: str) -> bool:
    """Return whether a name, relative to a working directory, is one of a file that is fetched."""
    parts = name.split("/")
    return "\0" not in name and all(part and not part.startswith(".") for part in parts)


class FetchedFiles:
    """The files that arrive, written below a folder here: each whole or not at all.

    Attributes:
        names: of the files that are there, relative to the folder.
        nbytes: of all of them.
        problems: why others are not, a sentence each.
    """

    def __init__(self, folder: Path, spared: Collection[Path]) -> None:
        """Begin with none.

        Args:
            folder: to write into.
            spared: files that are never replaced: the code that was sent.
        """
        self.names: list[str] = []
        self.nbytes = 0
        self.problems: list[str] = []
        self._folder = folder
        self._spared = spared
        self._name: str | None = None
        self._aside: Path | None = None
        self._file: BinaryIO | None = None

    def take(self, part: MadePart) -> None:
        """Write a part of a file; the last one gives the file its name."""
        try:
            if part.path != self._name:
                self._begin(part.path)
            if self._file is None:  # of a file that is not written
                return
            self._file.write(part.data)
            if part.last:
                self._complete(part.path)
        except OSError as error:
            self.drop()
            self.problems.append(f"{part.path} cannot be written: {error.strerror or error}")

    def drop(self) -> None:
        """Remove what has arrived of a file that is not whole."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        if self._aside is not None:
            self._aside.unlink(missing_ok=True)
        self._file = self._aside = None

    def _begin(self, name: str) -> None:
        self.drop()
        self._name = name
        target = self._folder / name
        if not is_fetched(name):
            self.problems.append(f"{name[:80]!r} is no name of a file below a folder")
        elif target in self._spared:
            self.problems.append(f"{name} is a file of the code, which is not replaced")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._aside = target.with_name(f".{secrets.token_hex(4)}.fetched")
            self._file = open(self._aside, "xb")  # noqa: SIM115 - it is closed with its last part

    def _complete(self, name: str) -> None:
        assert self._file is not None
        assert self._aside is not None
        self.nbytes += self._file.tell()
        self._file.close()
        self._aside.replace(self._folder / name)
        self._file = self._aside = self._name = None
        self.names.append(name)


def _made(work: Path) -> Iterator[tuple[Path, str]]:
    for parent, folders, files in os.walk(work):
        folders[:] = sorted(name for name in folders if name != _COMPILED)
        for file in sorted(files):
            path = Path(parent, file)
            name = str(path.relative_to(work))
            if is_fetched(name):
                yield path, name


def _parts(path: Path, name: str) -> Iterator[MadePart]:
    name.encode()
    if not stat.S_ISREG(path.lstat().st_mode):
        return
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        data = file.read(PART_BYTES)
        while following := file.read(PART_BYTES):
            yield MadePart(name, data, last=False)
            data = following
        yield MadePart(name, data, last=True)
