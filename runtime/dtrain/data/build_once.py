"""Files that one process of a host builds, while the others that need them wait.

The folder is locked for a moment, to look for a builder. A builder writes `.NAME.<12 hex>` beside the file,
holds it locked, and renames it when it is whole. The kernel lets go of the lock when the builder dies in any
way, and the next process removes what it has left.
"""

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from dtrain.errors import WaitTimeoutError
from dtrain.process.assignment import RUN_DIR
from dtrain.process.file_lock import holder, locked

WAIT_S = 60.0
"""The longest wait for another process that looks into the folder."""
NAME_CHARS_MAX = 100
CHANCE_BYTES = 6
PENDING_BYTES_MAX = 8 << 20
FLUSHED_AFTER_S = 1.0

T = TypeVar("T")
Write = Callable[[bytes | memoryview], None]


class UnwritableError(OSError):
    """A file cannot be built: there is no folder, no room, or no right to write there."""


def build_once(
    path: Path,
    read: Callable[[Path], T | None],
    make: Callable[[Write], T | None],
    wait_s: float,
    work: str,
    *,
    makes_folder: bool = False,
) -> T:
    """Return what a file holds; the first process to come writes it, and replaces a file that is of no use.

    Args:
        read: returns what the file holds; None if it is not there, or not the right one.
        make: writes the file, and returns what it holds, or None. Its errors go through, without a file.
        wait_s: how long the file of another process may have one size.
        work: of a builder, in words that follow "to".

    Raises:
        UnwritableError: the file cannot be written.
        WaitTimeoutError: another process builds it, and does not go on.
    """
    if makes_folder:
        with _unwritable():
            path.parent.mkdir(parents=True, exist_ok=True)
    result = read(path)
    while result is None:
        aside, descriptor, builds = _aside(path)
        try:
            if not builds:
                _wait_for_builder(descriptor, wait_s, work)
            result = read(path)
            if builds and result is None:
                file = _GrowingFile(descriptor)
                result = make(file.write)
                file.flush()
                with _unwritable():
                    os.fsync(descriptor)
                    aside.rename(path)
        finally:
            if builds:
                with suppress(OSError):  # it has its name, or the folder is gone
                    aside.unlink()
            os.close(descriptor)
    return result


def once_in_run(
    name: str,
    read: Callable[[Path], T | None],
    compute: Callable[[], T],
    keep: Callable[[Write, T], None],
    wait_s: float,
    work: str,
) -> T:
    """Return what one task of this host computes, and keeps under a name in the run directory for the others.

    Without a run directory, or without room in it, every task computes for itself. See `build_once`.
    """
    run_dir = os.environ.get(RUN_DIR)
    computed = cache(compute)

    def make(write: Write) -> T:
        keep(write, computed())
        return computed()

    if run_dir:
        with suppress(UnwritableError):
            return build_once(Path(run_dir) / name, read, make, wait_s, work, makes_folder=True)
    return computed()


class _GrowingFile:
    """A file that grows at least once a second while it is written, so that those who wait see the work."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = bytearray()
        self._flushed_s = time.monotonic()

    def write(self, data: bytes | memoryview) -> None:
        self._pending += data
        late = time.monotonic() - self._flushed_s > FLUSHED_AFTER_S
        if late or len(self._pending) >= PENDING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        rest = memoryview(bytes(self._pending))
        with _unwritable():
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self._pending.clear()
        self._flushed_s = time.monotonic()


def _aside(path: Path) -> tuple[Path, int, bool]:
    name = f".{path.name[-NAME_CHARS_MAX:]}."
    pattern = re.compile(re.escape(name) + f"[0-9a-f]{{{2 * CHANCE_BYTES}}}")
    with _unwritable():
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with locked(folder, WAIT_S, f"look for {path}"):
            for other in sorted(each for each in path.parent.iterdir() if pattern.fullmatch(each.name)):
                if (descriptor := _of_living_builder(other)) is not None:
                    return other, descriptor, False
            aside = path.with_name(name + secrets.token_hex(CHANCE_BYTES))
            with _unwritable():
                descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with suppress(OSError):  # as on some network drives: then each process builds its own
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return aside, descriptor, True
    finally:
        os.close(folder)


def _of_living_builder(path: Path) -> int | None:
    """Return the open file of a builder that lives; remove the one of a builder that died."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # it has ended meanwhile, or belongs to another user
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return descriptor
    else:
        with suppress(OSError):
            path.unlink()
    os.close(descriptor)
    return None


def _wait_for_builder(descriptor: int, wait_s: float, work: str) -> None:
    grown_s, nbytes = time.monotonic(), os.fstat(descriptor).st_size
    while True:
        try:
            with locked(descriptor, min(wait_s, WAIT_S), work):
                return
        except WaitTimeoutError:
            before, nbytes = nbytes, os.fstat(descriptor).st_size
            if nbytes != before:
                grown_s = time.monotonic()
            elif time.monotonic() - grown_s >= wait_s:
                raise WaitTimeoutError(
                    f"waited for {holder(descriptor)} to {work}, which has not grown beyond {nbytes} bytes "
                    f"for {wait_s:.0f} s; stop that process, or wait until it has ended, and start again"
                ) from None


@contextmanager
def _unwritable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnwritableError(error.errno, error.strerror or str(error)) from None
