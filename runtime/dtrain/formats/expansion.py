"""The bytes that compressed data may grow to, and the streams that keep to it."""

import gzip
import io
import os
import zlib
from typing import BinaryIO, cast

from dtrain.errors import InputError

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
    """Return the decompressed bytes of an open file, which raise an `InputError` beyond what it may grow to.

    Args:
        file: from its beginning.
        compression: empty, GZIP or ZLIB.
        where: its name.
    """
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
    """The decompressed bytes of a file."""

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
