"""Files that agent and launcher copy to each other: of run directories, checkpoints, and made by tasks.

An agent sends what its tasks write into a run directory: records as a whole, and what has been added to
files that grow. Other names than these are neither sent nor written. A checkpoint is sent file by file, and
arrives whole or not at all.

The files that tasks have made in the working directory are sent at the end. The links to the code that was
sent are not among them, nor are hidden files, compiled modules of Python, and links that a program has
made.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from dtrain.cluster import TaskId
from dtrain.formats.bounded_reading import open_regular
from dtrain.runs.files import RunFiles
from dtrain_cli.agent.messages import AllMade, Appended, FileNews, MadePart, Replaced

_TASK = r"tasks/[a-z]+-\d{1,9}"
_ATTEMPT = rf"{_TASK}/attempt-\d{{1,9}}"
_RECORD = re.compile(
    rf"spec\.json|{_TASK}/(status|joined|kill)\.json|{_ATTEMPT}/(failure\.json|seconds-\d{{1,9}}\.bin)"
)
_GROWS = re.compile(rf"(metrics|reports)\.jsonl|{_ATTEMPT}/(output\.log|trace\.jsonl)")
RECORD_BYTES_MAX = 1 << 20
PIECE_BYTES = 1 << 18
"""The largest part of a file in one message."""
_GLOB_EVERY = 4
"""Looks between two searches for files of tasks that run on other hosts, and for those that seldom change."""
_SELDOM = ("/failure.json", "/trace.jsonl")
_TIMESHEET_EVERY = 20
"""Looks between two copies of a timesheet."""


def is_record(path: str) -> bool:
    return _RECORD.fullmatch(path) is not None


def grows(path: str) -> bool:
    return _GROWS.fullmatch(path) is not None


class CopiedFiles:
    """The files that an agent has sent, in its run directory."""

    def __init__(self, run_dir: Path, known: dict[str, int]) -> None:
        """Follow only the files of the run; `known` bytes of those that grow were sent before."""
        self._files = RunFiles(run_dir)
        self._paths: dict[str, str] = {}  # making one costs more than the look at its file
        self._sent_bytes = {path: size for path, size in known.items() if grows(path)}
        self._growing: dict[str, None] = {"metrics.jsonl": None, "reports.jsonl": None}
        self._records: dict[str, tuple[int, int, int] | None] = {"spec.json": self._stamp("spec.json")}
        self._looks = 0

    def follow(self, task: TaskId, attempt: int) -> None:
        folder = self._name(self._files.task(task))
        for path in [path for path in self._growing if path.startswith(f"{folder}/")]:
            del self._growing[path]
        self._records.setdefault(self._name(self._files.status(task)), None)
        self._records[self._name(self._files.failure(task, attempt))] = None
        self._growing[self._name(self._files.log(task, attempt))] = None
        self._growing[self._name(self._files.trace(task, attempt))] = None

    def news(self) -> Iterator[FileNews]:
        """Yield what has changed, at most one piece of each file that grows."""
        self._looks += 1
        all_of_them = self._looks % _GLOB_EVERY == 0
        if all_of_them:
            self._find()
        for path in self._growing:
            if (all_of_them or not path.endswith(_SELDOM)) and (piece := self._piece(path)) is not None:
                yield piece
        for path in list(self._records):
            if all_of_them or not path.endswith(_SELDOM):
                yield from self._record(path)

    def rest(self, task: TaskId) -> Iterator[FileNews]:
        self._looks += _TIMESHEET_EVERY
        self._find()
        folder = f"{self._name(self._files.task(task))}/"
        for path in [path for path in self._growing if path.startswith(folder)]:
            while (piece := self._piece(path)) is not None:
                yield piece
        for path in [path for path in self._records if path.startswith(folder)]:
            yield from self._record(path)

    def _find(self) -> None:
        """Look for records about tasks of other hosts, which the leader writes, and for timesheets."""
        root = self._files.directory
        for pattern in ("tasks/*/kill.json", "tasks/*/attempt-*/seconds-*.bin", "tasks/worker-*/joined.json"):
            for path in root.glob(pattern):
                self._records.setdefault(self._name(path), None)
                if path.name == "joined.json":
                    self._records.setdefault(self._name(path.with_name("status.json")), None)

    def _path(self, name: str) -> str:
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = str(self._files.directory / name)
        return path

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._files.directory))

    def _stamp(self, path: str) -> tuple[int, int, int] | None:
        try:
            facts = os.stat(self._path(path))  # noqa: PTH116 - a Path takes as long as the look itself
        except OSError:
            return None
        if path.endswith(".bin"):  # memory of a process, of which nothing says when it was written
            return self._looks // _TIMESHEET_EVERY, 0, facts.st_size
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def _record(self, path: str) -> Iterator[FileNews]:
        stamp = self._stamp(path)
        if stamp is None or stamp == self._records[path] or stamp[2] > RECORD_BYTES_MAX:
            return
        # A file that is being written is read at the next look.
        with contextlib.suppress(OSError, ValueError, OverflowError):
            record = Replaced(path, (self._files.directory / path).read_bytes())
            self._records[path] = stamp
            yield record

    def _piece(self, path: str) -> Appended | None:
        sent = self._sent_bytes.get(path, 0)
        try:
            if os.stat(self._path(path)).st_size <= sent:  # noqa: PTH116
                return None
            with open(self._path(path), "rb") as file:
                file.seek(sent)
                data = file.read(PIECE_BYTES)
        except OSError:
            return None
        self._sent_bytes[path] = sent + len(data)
        return Appended(path, data)


COPIED_BYTES_MAX = 256 << 20
"""A larger checkpoint has no second place: it would fill the connection that keeps the tasks alive."""
_ASIDE = ".tmp-ckpt-0-0"
"""The name of what has not arrived yet; after a crash the leader sweeps it away."""


def checkpoint_parts(checkpoints: Path, step: int) -> Iterator[MadePart | AllMade]:
    """Yield a checkpoint part by part, and the end, which says why it is not whole."""
    folder = checkpoints / f"ckpt-{step}"
    try:
        nbytes = sum(path.stat().st_size for path in folder.iterdir())
    except OSError as error:
        yield AllMade([f"it cannot be read: {error.strerror}"], step)
        return
    if nbytes > COPIED_BYTES_MAX:
        yield AllMade([f"it has {nbytes >> 20} MiB, and at most {COPIED_BYTES_MAX >> 20} are copied"], step)
        return
    yield from made_parts(folder, step)


class ArrivingCheckpoint:
    """A checkpoint that arrives below a folder, and gets its name when it is whole."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._files: FetchedFiles | None = None

    def write(self, part: MadePart | AllMade) -> list[str]:
        """Write a part, or raise an `OSError`; after the last one return why the checkpoint is not there."""
        aside = self._checkpoints / _ASIDE
        if self._files is None:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            self._files = FetchedFiles(aside, 2 * COPIED_BYTES_MAX)
        if isinstance(part, MadePart):
            self._files.write(part)
            return []
        problems = [*part.problems, *self._files.problems]
        self.drop()
        if not problems:
            target = self._checkpoints / f"ckpt-{part.step}"
            shutil.rmtree(target, ignore_errors=True)
            aside.rename(target)
        return problems

    def drop(self) -> None:
        if self._files is not None:
            self._files.drop()
        self._files = None


BYTES_MAX = 16 << 30
FILES_MAX = 10_000
"""No more is taken of one host; the rest stays there."""
_BLOCK_BYTES = 4096
"""A part counts at least so much: a host cannot send parts without end."""
_DEPTH_MAX = 32
_COMPILED = "__pycache__"


def made_parts(work: Path, step: int | None = None) -> Iterator[MadePart | AllMade]:
    """Yield each file below a folder part by part, sorted by name, and the end; `step` of a checkpoint."""
    problems = []
    for path, name in _made(work):
        try:
            yield from _parts(path, name)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        except UnicodeEncodeError:
            problems.append(f"{os.fsencode(name)!r} is no name in UTF-8")
    yield AllMade(problems, step)


def is_fetched(name: str) -> bool:
    parts = name.split("/")
    fits = "\0" not in name and len(parts) <= _DEPTH_MAX
    return fits and all(part and not part.startswith(".") for part in parts)


class FetchedFiles(msgspec.Struct):
    """The files that arrive, written below a folder here: each whole or not at all, and through no link.

    It replaces a file only if an earlier call wrote that file and its content is still the same.

    Attributes:
        second: the caller's own folder, for files that may not be written there; None: they are problems.
        brought: the digest of each file that this or an earlier call has brought to the first folder.
        full: whether the sender has sent more than `bytes_max`; nothing more is written.
    """

    folder: Path
    bytes_max: int = BYTES_MAX
    second: Path | None = None
    brought: dict[str, str] = msgspec.field(default_factory=dict)
    names: list[str] = msgspec.field(default_factory=list)
    apart: list[str] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    nbytes: int = 0
    full: bool = False
    _taken_bytes: int = 0
    _begun: int = 0
    _name: str | None = None
    _aside: str = ""
    _parent: int = -1
    _apart: bool = False
    _file: BinaryIO | None = None

    def write(self, part: MadePart) -> None:
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
        data = file.read(PIECE_BYTES)
        while following := file.read(PIECE_BYTES):
            yield MadePart(name, data, last=False)
            data = following
        yield MadePart(name, data, last=True)
