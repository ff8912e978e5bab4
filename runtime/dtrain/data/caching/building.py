"""Files of caches that are built once on a host: by the process that comes first; the others wait for it.

The builder writes `.NAME.<hex>` beside the file, holds it locked, and renames it when it is whole. The kernel
lets go of the lock when the builder dies in any way; what it leaves is removed by the next one.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dtrain.data.caching.cache_file import CacheFile, cannot_be_written, opened_cache, write_elements
from dtrain.data.structure import Element
from dtrain.errors import InputError, WaitTimeoutError
from dtrain.formats.regular_file import is_trusted
from dtrain.process.file_lock import holder, locked

WAIT_S = 60.0
"""The longest wait for another process that looks into the folder."""
STALLED_S = 600.0
"""The longest wait for another process's cache that does not grow meanwhile."""
NAME_CHARS_MAX = 100
SHARE_OF_DISK = 2
"""One part in so many of what is free on a disk is for a cache, unless the program says how much."""


def built_once(
    path: Path,
    fingerprint: str,
    elements: Callable[[], Iterable[Element]],
    compression: str = "",
    limit_bytes: int | None = None,
) -> CacheFile:
    """Return the cache of a pipeline: the one that is there, or a new one.

    Args:
        path: of the file; one of another pipeline is replaced.
        fingerprint: of the pipeline.
        elements: its elements; asked for only where they are to be written.
        compression: of new files; empty or GZIP.
        limit_bytes: of a new file; None: see SHARE_OF_DISK.

    Raises:
        InputError: the file cannot be read or written, is no cache, or has more than `limit_bytes`.
        WaitTimeoutError: another process builds it, and does not go on.
    """
    while True:
        if (found := _of_pipeline(path, fingerprint)) is not None:
            return found
        aside, builds = _begun(path)
        try:
            if not builds:
                _wait_for(aside, path)
                continue
            if (found := _of_pipeline(path, fingerprint)) is not None:  # it was built meanwhile
                return found
            limit = _free_bytes(aside, path) // SHARE_OF_DISK if limit_bytes is None else limit_bytes
            write_elements(aside.descriptor, path, elements(), fingerprint, compression, limit)
            aside.rename(path)
        finally:
            aside.close(remove=builds)


class _PartialFile:
    """A file that a builder writes; this process's own, or another one's."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self.descriptor = descriptor

    def rename(self, path: Path) -> None:
        """Put it in the place of the cache."""
        try:
            self._path.rename(path)
        except OSError as error:
            raise cannot_be_written(path, error) from None

    def close(self, *, remove: bool) -> None:
        """Close it, and remove it if it still has its name."""
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self.descriptor)


def _of_pipeline(path: Path, fingerprint: str) -> CacheFile | None:
    found = opened_cache(path)
    if found is not None and not is_trusted(facts := found.stat(), path.parent.stat()):
        raise InputError(
            f"{path}: the cache was written by another user (uid {facts.st_uid}), who may have put anything "
            "into it; name another path, or copy the file there, if you trust that user"
        )
    return found if found is not None and found.fingerprint == fingerprint else None


def _begun(path: Path) -> tuple[_PartialFile, bool]:
    """Return the file that is being written, and whether it is this process that writes it."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_be_written(path, error) from None
    try:
        with locked(folder, WAIT_S, f"look for the cache {path}"):
            for other in _asides(path):
                if (aside := _of_another(other)) is not None:
                    return aside, False
            return _own(path), True
    finally:
        os.close(folder)


def _asides(path: Path) -> list[Path]:
    pattern = re.compile(re.escape(f".{path.name[-NAME_CHARS_MAX:]}.") + "[0-9a-f]{12}")
    return sorted(each for each in path.parent.iterdir() if pattern.fullmatch(each.name))


def _of_another(path: Path) -> _PartialFile | None:
    """Return the file of a builder that lives; remove the one of a builder that died."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # it has ended meanwhile, or belongs to another user
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return _PartialFile(path, descriptor)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    os.close(descriptor)
    return None


def _own(path: Path) -> _PartialFile:
    aside = path.with_name(f".{path.name[-NAME_CHARS_MAX:]}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise cannot_be_written(path, error) from None
    with contextlib.suppress(OSError):  # as on some network drives: then each process builds its own
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return _PartialFile(aside, descriptor)


def _wait_for(aside: _PartialFile, path: Path) -> None:
    """Wait until the builder has ended, as long as its file grows."""
    grown_s, nbytes = time.monotonic(), -1
    while True:
        try:
            with locked(aside.descriptor, min(STALLED_S, WAIT_S), f"build the cache {path}"):
                return
        except WaitTimeoutError:
            found = os.fstat(aside.descriptor).st_size
            if found != nbytes:
                grown_s, nbytes = time.monotonic(), found
            elif time.monotonic() - grown_s >= STALLED_S:
                raise WaitTimeoutError(
                    f"{path}: waited for {holder(aside.descriptor)} to build the cache, which has not grown "
                    f"beyond {nbytes} bytes for {STALLED_S:.0f} s; stop that process, and start again"
                ) from None


def _free_bytes(aside: _PartialFile, path: Path) -> int:
    try:
        facts = os.fstatvfs(aside.descriptor)
    except OSError as error:
        raise InputError(f"{path}: its disk cannot be asked for room: {error.strerror}") from None
    return facts.f_bavail * facts.f_frsize
