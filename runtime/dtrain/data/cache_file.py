"""The file of a cache: elements as plain data, of which any can be read at once; built once on a host.

    "DTCACHE1"
    each element: the CRC-32 of its number and data (4 bytes), its data, see `encode_element`
    the offset of each element, and of their end: uint64, little endian
    a header (JSON), its length and its CRC-32 (4 bytes each), "DTCACHE1"

A file without the last part is none: its writer was stopped.
"""

import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain.data.build_once import UnwritableError, Write, build_once
from dtrain.data.node import runs_of
from dtrain.data.stores.local import OpenFile
from dtrain.data.structure import Element, decode_element, encode_element
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import inflated, is_trusted, room_for

MAGIC = b"DTCACHE1"
OFFSET_BYTES = 8
ELEMENTS_FREE_BYTES = 1 << 20
"""Bytes that the elements of any file may take in memory: one byte may stand for an object of 64 bytes."""
HEADER_BYTES_MAX = 4096
READ_BYTES_MAX = 8 << 20
ROOM_OF_HEADER_BYTES = 512
COMPRESSIONS = ("", "GZIP")
_CHECKSUM = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_END = struct.Struct("<II8s")
_DAMAGES = (ValueError, TypeError, KeyError, IndexError, RecursionError, zlib.error, MemoryError)
_FLATE_LEVEL = 6


class CacheFooter(msgspec.Struct, frozen=True, kw_only=True):
    """The last part of a file: `offsets_at` is the byte at which the offsets begin."""

    fingerprint: str
    elements: int
    offsets_at: int
    compression: str


class CacheFile:
    """A whole file of elements, open for reading."""

    def __init__(self, file: OpenFile, header: CacheFooter) -> None:
        self.path = file.path
        self.fingerprint = header.fingerprint
        self._file = file
        self._header = header

    def __len__(self) -> int:
        return self._header.elements

    def stat(self) -> os.stat_result:
        return os.fstat(self._file.descriptor)

    @property
    def together(self) -> int:
        return max(1, READ_BYTES_MAX * len(self) // self._header.offsets_at)

    def read(self, numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> list[Element]:
        """Return elements, neighbours by one read; raise an `InputError` if one of them is damaged."""
        runs = [
            self._in_a_row(int(numbers[start]), end - start) for start, end in runs_of(numbers, self.together)
        ]
        return list(itertools.chain.from_iterable(runs))

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
    """Return a file of elements, None for a part of one; raise an `InputError` if it is something else."""
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
    write: Write,
    path: Path,
    elements: Iterable[Element],
    fingerprint: str,
    compression: str,
    limit_bytes: int,
) -> None:
    """Write a file of elements; raise an `InputError` if it takes more than `limit_bytes`."""
    write(MAGIC)
    end = len(MAGIC)
    grown = 0
    offsets = [end]
    for number, element in enumerate(elements):
        data = encode_element(element, "cache")
        if compression:
            packed = zlib.compress(data, _FLATE_LEVEL)
            grown += len(data)
            if grown > room_for(end + len(packed), ELEMENTS_FREE_BYTES):
                packed = zlib.compress(data, 0)  # so that the elements of no file grow beyond what is read
            data = packed
        end += _CHECKSUM.size + len(data)
        offsets.append(end)
        if end + len(offsets) * OFFSET_BYTES + ROOM_OF_HEADER_BYTES > limit_bytes:
            raise InputError(
                f"{path}: the file takes more than {limit_bytes} bytes with element {number}; "
                "nothing was kept. That is its bound, limit_bytes, by default half of what is free on the "
                "disk: make room, give a larger one, or keep fewer elements"
            )
        write(_CHECKSUM.pack(_checksum(number, data)) + data)
    header = CacheFooter(
        fingerprint=fingerprint, elements=len(offsets) - 1, offsets_at=end, compression=compression
    )
    text = msgspec.json.encode(header)
    write(np.array(offsets, "<u8").tobytes() + text + _END.pack(len(text), zlib.crc32(text), MAGIC))


def _checksum(number: int, data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(_NUMBER.pack(number)))


STALLED_S = 600.0
"""The longest wait for another process's cache that does not grow meanwhile."""
SHARE_OF_DISK = 2
"""One part in so many of what is free on a disk is for a cache, unless the program says how much."""


def built_once(
    path: Path,
    fingerprint: str,
    elements: Callable[[], Iterable[Element]],
    compression: str = "",
    limit_bytes: int | None = None,
    *,
    makes_folder: bool = False,
) -> CacheFile:
    """Return the cache of a pipeline. A file of another pipeline is replaced by a new one.

    Raises:
        InputError: the file cannot be read or written, is no cache, or has more than `limit_bytes`.
        WaitTimeoutError: another process builds it, and does not go on.
    """

    def make(write: Write) -> None:
        limit = _free_bytes(path) // SHARE_OF_DISK if limit_bytes is None else limit_bytes
        write_elements(write, path, elements(), fingerprint, compression, limit)

    try:
        return build_once(
            path,
            lambda path: _of_pipeline(path, fingerprint),
            make,
            STALLED_S,
            f"build the cache {path}",
            makes_folder=makes_folder,
        )
    except UnwritableError as error:
        raise InputError(
            f"{path}: the cache cannot be written: {error.strerror}; nothing was kept: make room, or give it "
            "another place"
        ) from None


def _of_pipeline(path: Path, fingerprint: str) -> CacheFile | None:
    found = opened_cache(path)
    if found is not None and not is_trusted(facts := found.stat(), path.parent.stat()):
        raise InputError(
            f"{path}: the cache was written by another user (uid {facts.st_uid}), who may have put anything "
            "into it; name another path, or copy the file there, if you trust that user"
        )
    return found if found is not None and found.fingerprint == fingerprint else None


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError as error:
        raise InputError(f"{path}: its disk cannot be asked for room: {error.strerror}") from None
