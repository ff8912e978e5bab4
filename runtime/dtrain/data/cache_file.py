"""The file of a cache: elements as plain data, of which any can be read at once; built once on a host.

    "DTCACHE1"
    each element: the CRC-32 of its number and data (4 bytes), its data, see `encode_element`
    the offset of each element, and of their end: uint64, little endian
    a header (JSON), its length and its CRC-32 (4 bytes each), "DTCACHE1"

A file without the last part is none: its writer was stopped.

The process that comes first builds it, and the others wait. The builder writes `.NAME.<hex>` beside the
file, holds it locked, and renames it when it is whole. The kernel lets go of the lock when the builder dies
in any way; what it leaves is removed by the next one.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain.data.stores.local import OpenFile
from dtrain.data.structure import Element, decode_element, encode_element
from dtrain.errors import InputError, WaitTimeoutError
from dtrain.formats.bounded_reading import inflated, is_trusted, room_for
from dtrain.process.file_lock import holder, locked

MAGIC = b"DTCACHE1"
OFFSET_BYTES = 8
ELEMENTS_FREE_BYTES = 1 << 20
"""Bytes that the elements of any file may take in memory: one byte may stand for an object of 64 bytes."""
HEADER_BYTES_MAX = 4096
READ_BYTES_MAX = 8 << 20
FLUSHED_AFTER_S = 1.0
ROOM_OF_HEADER_BYTES = 512
COMPRESSIONS = ("", "GZIP")
_CHECKSUM = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_END = struct.Struct("<II8s")
_DAMAGES = (ValueError, TypeError, KeyError, IndexError, RecursionError, zlib.error, MemoryError)
_FLATE_LEVEL = 6


class CacheFooter(msgspec.Struct, frozen=True, kw_only=True):
    """The last part of a file.

    Attributes:
        fingerprint: of the pipeline whose elements these are.
        elements: how many there are.
        offsets_at: the byte at which the offsets begin.
        compression: empty or GZIP, of each element by itself.
    """

    fingerprint: str
    elements: int
    offsets_at: int
    compression: str


class CacheFile:
    """A whole file of elements, open for reading.

    Attributes:
        path: of the file.
        fingerprint: of the pipeline whose elements these are.
    """

    def __init__(self, file: OpenFile, header: CacheFooter) -> None:
        self.path = file.path
        self.fingerprint = header.fingerprint
        self._file = file
        self._header = header

    def __len__(self) -> int:
        return self._header.elements

    def stat(self) -> os.stat_result:
        """Return what the system knows of the open file, its owner among it."""
        return os.fstat(self._file.descriptor)

    @property
    def together(self) -> int:
        """Return how many elements in a row are worth one read."""
        return max(1, READ_BYTES_MAX * len(self) // self._header.offsets_at)

    def read(self, numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> list[Element]:
        """Return elements; neighbours are read at once.

        Raises:
            InputError: the file cannot be read, or one of them is damaged.
        """
        found: list[Element] = []
        start = 0
        for end in (np.flatnonzero(np.diff(numbers, append=-2) != 1) + 1).tolist():
            for begin in range(start, end, self.together):
                found += self._in_a_row(int(numbers[begin]), min(begin + self.together, end) - begin)
            start = end
        return found

    def _in_a_row(self, first: int, count: int) -> list[Element]:
        at = self._header.offsets_at + first * OFFSET_BYTES
        offsets = np.frombuffer(self._file.read(at, (count + 1) * OFFSET_BYTES), "<u8").tolist()
        limits = [len(MAGIC), *offsets, self._header.offsets_at]
        if any(before > after for before, after in itertools.pairwise(limits)):
            raise self._damaged(first, offsets[0], "the offsets of elements are not in order")
        data = memoryview(self._file.read(offsets[0], offsets[-1] - offsets[0]))
        parts = [data[begin - offsets[0] : end - offsets[0]] for begin, end in itertools.pairwise(offsets)]
        room = room_for(self._header.offsets_at, ELEMENTS_FREE_BYTES)
        found = []
        for place, part in enumerate(parts):
            element, grown = self._decoded(first + place, offsets[place], part, room)
            found.append(element)
            room -= grown
        return found

    def _decoded(self, number: int, offset: int, part: memoryview, room: int) -> tuple[Element, int]:
        if len(part) < _CHECKSUM.size:
            raise self._damaged(number, offset, f"it has {len(part)} bytes")
        data = part[_CHECKSUM.size :]
        if _checksum(number, data) != _CHECKSUM.unpack_from(part)[0]:
            raise self._damaged(number, offset, "its checksum does not fit")
        try:
            plain = inflated(data, room) if self._header.compression else bytes(data)
            return decode_element(plain), len(plain)
        except _DAMAGES as error:
            raise self._damaged(number, offset, str(error)[:200]) from None

    def _damaged(self, number: int, offset: int, found: str) -> InputError:
        return InputError(
            f"{self.path}: the cached element {number} at byte {offset} is damaged: {found}; remove the "
            "file, and it is built anew"
        )


def opened_cache(path: Path) -> CacheFile | None:
    """Return a file of elements; None if there is none, or only a part of one.

    Raises:
        InputError: the file cannot be read, or is something else.
    """
    if not os.path.lexists(path):
        return None
    file = OpenFile(str(path))
    nbytes = file.state()[0]
    if nbytes and file.read(0, min(nbytes, len(MAGIC))) != MAGIC:
        raise InputError(
            f"{path}: expected a file that cache, snapshot or save has written, found another one, which "
            "stays as it is; name another path"
        )
    header = _header(file, nbytes)
    return None if header is None else CacheFile(file, header)


def _header(file: OpenFile, nbytes: int) -> CacheFooter | None:
    if nbytes < len(MAGIC) + _END.size:
        return None
    length, checksum, magic = _END.unpack(file.read(nbytes - _END.size, _END.size))
    begin = nbytes - _END.size - length
    if magic != MAGIC or length > HEADER_BYTES_MAX or begin < len(MAGIC):
        return None
    text = file.read(begin, length)
    if zlib.crc32(text) != checksum:
        return None
    try:
        header = msgspec.json.decode(text, type=CacheFooter)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    whole = header.elements >= 0 and header.offsets_at + (header.elements + 1) * OFFSET_BYTES == begin
    return header if whole and header.compression in COMPRESSIONS else None


def write_elements(
    descriptor: int,
    path: Path,
    elements: Iterable[Element],
    fingerprint: str,
    compression: str,
    limit_bytes: int,
) -> None:
    """Write a whole file of elements, to the disk; an error of the elements themselves goes through.

    Raises:
        InputError: the file takes more than `limit_bytes`, cannot be written, or an element is no plain data.
    """
    writer = _Writer(descriptor, path, limit_bytes, bool(compression))
    for element in elements:
        writer.append(encode_element(element, "cache"))
    writer.finish(fingerprint, compression)


class _Writer:
    """Appends to a file, within a bound."""

    def __init__(self, descriptor: int, path: Path, limit_bytes: int, compressed: bool) -> None:
        self._descriptor = descriptor
        self._path = path
        self._limit_bytes = limit_bytes
        self._compressed = compressed
        self._pending = bytearray(MAGIC)
        self._flushed_s = time.monotonic()
        self._at = len(MAGIC)
        self._grown = 0
        self._offsets: list[int] = []

    def append(self, data: bytes) -> None:
        """Append an element."""
        if self._compressed:
            packed = zlib.compress(data, _FLATE_LEVEL)
            self._grown += len(data)
            if self._grown > room_for(self._at + len(packed), ELEMENTS_FREE_BYTES):
                packed = zlib.compress(data, 0)  # so that the elements of no file grow beyond what is read
            data = packed
        number = len(self._offsets)
        self._offsets.append(self._at)
        self._pending += _CHECKSUM.pack(_checksum(number, data))
        self._pending += data
        self._at += _CHECKSUM.size + len(data)
        whole = self._at + (number + 2) * OFFSET_BYTES + ROOM_OF_HEADER_BYTES
        if whole > self._limit_bytes:
            raise InputError(
                f"{self._path}: the file takes more than {self._limit_bytes} bytes with element {number}; "
                "nothing was kept. That is its bound, limit_bytes, by default half of what is free on the "
                "disk: make room, give a larger one, or keep fewer elements"
            )
        # Others see by its size that the work goes on.
        if len(self._pending) >= READ_BYTES_MAX or time.monotonic() - self._flushed_s > FLUSHED_AFTER_S:
            self._flush()

    def finish(self, fingerprint: str, compression: str) -> None:
        """Write the rest, and the last part."""
        header = CacheFooter(
            fingerprint=fingerprint,
            elements=len(self._offsets),
            offsets_at=self._at,
            compression=compression,
        )
        text = msgspec.json.encode(header)
        self._pending += np.array([*self._offsets, self._at], "<u8").tobytes()
        self._pending += text + _END.pack(len(text), zlib.crc32(text), MAGIC)
        self._flush()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise cannot_be_written(self._path, error) from None

    def _flush(self) -> None:
        rest = memoryview(bytes(self._pending))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise cannot_be_written(self._path, error) from None
        self._pending.clear()
        self._flushed_s = time.monotonic()


def cannot_be_written(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: the cache cannot be written: {error.strerror or error}; nothing was kept: make room, or "
        "give it another place"
    )


def _checksum(number: int, data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(_NUMBER.pack(number)))


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
