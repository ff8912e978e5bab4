"""The files that tasks have made in the working directory of their run, as they are sent and as they arrive.

The links to the code that was sent are not among them, nor are hidden files, compiled modules of Python, and
links that a program has made.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dtrain.formats.regular_file import open_regular
from dtrain_cli.agent.messages import AllMade, MadePart

PART_BYTES = 1 << 18
"""The largest part of a file in one message."""
BYTES_MAX = 16 << 30
FILES_MAX = 10_000
"""No more is taken of one host; the rest stays there."""
_BLOCK_BYTES = 4096
"""A part counts at least so much: a host cannot send parts without end."""
_DEPTH_MAX = 32
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
    fits = "\0" not in name and len(parts) <= _DEPTH_MAX
    return fits and all(part and not part.startswith(".") for part in parts)


@dataclass
class FetchedFiles:
    """The files that arrive, written below a folder here: each whole or not at all, and through no link.

    A file that is there is replaced only if an earlier call has brought it, and nobody has changed it since.

    Attributes:
        folder: to write into.
        bytes_max: how much is taken of the sender.
        second: the caller's own folder, for files that may not be written there; None: they are problems.
        brought: the digest of each file that this or an earlier call has brought to the first folder.
        names: of the files that are there, relative to the folder.
        apart: the names of those that came to the second folder.
        problems: why others are not, a sentence each.
        nbytes: of all that have come.
        full: whether more has come than is taken; nothing is written any more.
    """

    folder: Path
    bytes_max: int = BYTES_MAX
    second: Path | None = None
    brought: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    nbytes: int = 0
    full: bool = False
    _taken_bytes: int = 0
    _begun: int = 0
    _name: str | None = None
    _aside: str = ""
    _parent: int = -1
    _apart: bool = False
    _file: BinaryIO | None = None

    def take(self, part: MadePart) -> None:
        """Write a part of a file; the last one gives the file its name."""
        self._taken_bytes += max(len(part.data), _BLOCK_BYTES)
        self._begun += part.path != self._name
        if self._taken_bytes > self.bytes_max or self._begun > FILES_MAX:
            self.drop()
            if not self.full:
                most = f"{FILES_MAX} files or {self.bytes_max >> 20} MiB"
                self.problems.append(f"more than {most} have come; the rest stays where it is")
            self.full = True
            return
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
            self.problems.append(f"{part.path[:80]} cannot be written: {error.strerror or error}")

    def drop(self) -> None:
        """Remove what has arrived of a file that is not whole."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._aside, dir_fd=self._parent)
            with contextlib.suppress(OSError):
                self._file.close()
        if self._parent >= 0:
            os.close(self._parent)
        self._file, self._parent = None, -1

    def _begin(self, name: str) -> None:
        self.drop()
        self._name = name
        if not is_fetched(name):
            self.problems.append(f"{name[:80]!r} is no name of a file below a folder")
            return
        self._apart = False
        try:
            self._parent = _open_parent(self.folder, name)
            self._check(name)
        except OSError:
            if self.second is None:
                raise
            self.drop()
            self._apart = True
            self.second.mkdir(mode=0o700, exist_ok=True)
            self._parent = _open_parent(self.second, name)
        self._aside = f".{secrets.token_hex(4)}.fetched"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open(os.open(self._aside, flags, 0o666, dir_fd=self._parent), "wb")  # noqa: SIM115

    def _check(self, name: str) -> None:
        """Raise an `OSError` if a file is there that may not be replaced."""
        try:
            os.stat(name.rpartition("/")[2], dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if name not in self.brought or self._digest(name.rpartition("/")[2]) != self.brought[name]:
            raise FileExistsError(errno.EEXIST, "a file is there that no fetch has brought")

    def _digest(self, last: str) -> str:
        with open(open_regular(last, dir_fd=self._parent, follow=False), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _complete(self, name: str) -> None:
        assert self._file is not None
        nbytes = self._file.tell()
        self._file.close()
        if not self._apart:
            self._check(name)  # again: a large file takes its time
            self.brought[name] = self._digest(self._aside)
        last = name.rpartition("/")[2]
        os.replace(self._aside, last, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self.drop()
        self._name = None
        self.nbytes += nbytes
        (self.apart if self._apart else self.names).append(name)


def _open_parent(folder: Path, name: str) -> int:
    """Open the folder of a file below another one; it is made if need be, and no link is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    here = os.open(folder, flags)
    for part in name.split("/")[:-1]:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=here)
            there = os.open(part, flags | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = there
    return here


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
