"""Bounded reading of others' files: regular files alone, compressed data, JSON.

Every file that another program may have written is opened here, and read up to a size that its reader states.

Decoding makes objects: a list of two bytes (`[]`) takes 64 bytes of memory, and as much time as a long text.
"""

import errno
import gzip
import io
import os
import stat
import zlib
from typing import Annotated, BinaryIO, cast

import msgspec

from dtrain.errors import InputError

HOLES_FREE_BYTES = 64 << 20
HOLES_MAX = 1000
"""A file above the first size, of which less than one part in so many is data, has no use but to fill memory:
weights that a program has trained have no holes. A few zeros that a file system stores as a hole are free.
"""
_PIECES_MAX = 1000
"""Pieces of data that are looked at: a file in more of them is taken as it is."""


def open_regular(path: str | os.PathLike[str], *, dir_fd: int | None = None, follow: bool = True) -> int:
    """Open a regular file for reading; the caller closes the descriptor.

    A relative path begins at the open folder `dir_fd`; `follow` is about a link in its last part.

    Raises:
        OSError: there is none, it may not be read, it is no regular file, or it consists of holes; `strerror`
            says which.
    """
    # The look before the opening keeps away from devices that act when they are opened.
    _check_regular(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow), path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        _check_regular(os.fstat(descriptor), path)
        if _is_hollow(descriptor):
            raise OSError(errno.EINVAL, "expected data, found a file of holes", os.fspath(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_trusted(facts: os.stat_result, *neighbours: os.stat_result) -> bool:
    """Return whether this user, root, or the owner of a neighbour has written a file.

    Neighbours are its folder and the data that it is about: their owners could change those anyway.
    """
    return facts.st_uid in (os.geteuid(), 0, *(each.st_uid for each in neighbours))


def read_regular(path: str | os.PathLike[str], bytes_max: int, *, follow: bool = True) -> bytes:
    """Return the bytes of a regular file; raise an `OSError` as `open_regular`, or above `bytes_max`."""
    descriptor = open_regular(path, follow=follow)
    try:
        return read_whole(descriptor, bytes_max, path)
    finally:
        os.close(descriptor)


def read_whole(descriptor: int, bytes_max: int, path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of an open regular file; raise an `OSError` above `bytes_max`."""
    data = b""
    if (nbytes := os.fstat(descriptor).st_size) <= bytes_max:
        data = os.pread(descriptor, bytes_max + 1 if nbytes == 0 else nbytes, 0)
        while 0 < len(data) < nbytes and (more := os.pread(descriptor, nbytes - len(data), len(data))):
            data += more
    if max(nbytes, len(data)) > bytes_max:
        found = f"found {max(nbytes, len(data))} bytes, expected at most {bytes_max}"
        raise OSError(errno.EFBIG, found, os.fspath(path))
    return data


def _is_hollow(descriptor: int) -> bool:
    nbytes = os.fstat(descriptor).st_size
    position = found = 0
    for _ in range(_PIECES_MAX):
        if nbytes <= HOLES_FREE_BYTES or found * HOLES_MAX >= nbytes:
            return False
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            return error.errno == errno.ENXIO  # no data after this place; other errors: it cannot be told
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        found += position - begin
    return False


def _check_regular(facts: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(facts.st_mode):
        return
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    found = kinds.get(stat.S_IFMT(facts.st_mode), "a device")
    raise OSError(errno.EINVAL, f"expected a file, found {found}", os.fspath(path))


FREE_BYTES = 64 << 20
"""What any file may grow to."""
RATIO_MAX = 100
"""Times that a larger file may grow: text shrinks to a tenth, images to a half; what was made to fill memory,
to a thousandth.
"""
READ_BYTES = 256 * 1024


def room_for(nbytes: int, free_bytes: int = FREE_BYTES) -> int:
    """Return how many bytes compressed data of `nbytes` may grow to; `free_bytes` are for any data."""
    return max(free_bytes, nbytes * RATIO_MAX)


def check_growth(found: int, nbytes: int, where: str) -> None:
    """Raise an `InputError` where a file of `nbytes` has grown, or would grow, to more than it may."""
    if found > (room := room_for(nbytes)):
        raise InputError(
            f"{where}: the file grows too much when it is decompressed or made an array: to {found} "
            f"bytes, expected at most {room} of a file of {nbytes}."
        )


def decompressed(file: BinaryIO, compression: str, where: str) -> BinaryIO:
    """Return the decompressed bytes of an open file; more than it may grow to raise an `InputError`."""
    if not compression:
        return file
    return cast(BinaryIO, io.BufferedReader(_Growing(file, compression, where), READ_BYTES))


def inflated(data: bytes | memoryview, room: int) -> bytes:
    """Return what zlib has compressed; raise a ValueError if it ends early or has more than `room` bytes."""
    inflater = zlib.decompressobj()
    found = inflater.decompress(data, room + 1)
    if len(found) > room:
        raise ValueError(f"it grows too much when it is decompressed: expected at most {room} bytes")
    if not inflater.eof:
        raise ValueError("it ends in the middle of the compressed data")
    return found


class _Growing(io.RawIOBase):
    def __init__(self, file: BinaryIO, compression: str, where: str) -> None:
        self._where = where
        self._nbytes = file.seek(0, os.SEEK_END)
        self._grown = 0
        file.seek(0)
        self._file = file
        self._gzip = gzip.GzipFile(fileobj=file) if compression == "GZIP" else None
        self._inflater = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._inflated(len(buffer)) if self._gzip is None else self._gzip.read1(len(buffer))
        self._grown += len(data)
        check_growth(self._grown, self._nbytes, self._where)
        buffer[: len(data)] = data
        return len(data)

    def _inflated(self, bytes_max: int) -> bytes:
        data = b""
        while not data and not self._inflater.eof:
            compressed = self._inflater.unconsumed_tail or self._file.read(READ_BYTES)
            if not compressed:
                raise EOFError("the file ends in the middle of the stream")
            data = self._inflater.decompress(compressed, bytes_max)
        return data


JSON_BYTES_MAX = 16 << 20
"""Bytes of one text: a model with a vocabulary of a million words has about 12 MiB."""
CONTAINERS_MAX = 300_000
"""Lists and objects in one text. A safetensors header has three for each array, so this allows 100,000."""

Moment = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
"""A moment of a clock in seconds, perhaps by that of a machine which has begun later."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Text = Annotated[str, msgspec.Meta(max_length=3_000)]


def oversized(text: bytes) -> str | None:
    """Return what makes a text of JSON too large to decode; None if it is not."""
    if len(text) > JSON_BYTES_MAX:
        return f"it has {len(text)} bytes of JSON, expected at most {JSON_BYTES_MAX}"
    if (found := text.count(b"[") + text.count(b"{")) > CONTAINERS_MAX:
        return f"it has {found} lists and objects, expected at most {CONTAINERS_MAX}"
    return None
