"""Files at URLs as files of Python: blocks are read, from which small reads are served."""

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, cast

BLOCK_BYTES = 8 << 20
"""Bytes that are read at once from a file that is read from front to back."""
FIRST_BLOCK_BYTES = 64 * 1024
"""Bytes that are read first after a leap."""
GROWTH = 4
"""How many times larger the next block is where reads follow each other."""


class _Ranged(Protocol):
    path: str

    def state(self) -> tuple[int, int, str]: ...

    def read(self, start: int, nbytes: int) -> bytes: ...


class BlockReader:
    """A file that is read in blocks, which grow while reads follow each other; it serves one thread.

    Attributes:
        path: of the file, as messages show it.
    """

    def __init__(self, file: _Ranged) -> None:
        self._file = file
        self.path = file.path
        self._nbytes = file.state()[0]
        self._begin = 0
        self._block = b""
        self._wanted = FIRST_BLOCK_BYTES // GROWTH

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes of a range; raises as the file's."""
        end = self._begin + len(self._block)
        if not self._begin <= start <= start + nbytes <= end:
            follows = self._begin <= start <= end + self._wanted
            self._wanted = min(GROWTH * self._wanted, BLOCK_BYTES) if follows else FIRST_BLOCK_BYTES
            known = self._block[start - self._begin :] if self._begin <= start <= end else b""
            first = start + len(known)
            wanted = max(nbytes - len(known), min(self._wanted, self._nbytes - first))
            self._block = known + self._file.read(first, wanted)
            self._begin = start
        place = start - self._begin
        return self._block[place : place + nbytes]

    def stream(self) -> BinaryIO:
        """Return the bytes as a file that can be read and sought."""
        return cast(BinaryIO, io.BufferedReader(RangeStream(self.read, self._nbytes), FIRST_BLOCK_BYTES))


class RangeStream(io.RawIOBase):
    """A file of which ranges can be read, as a file with a position."""

    def __init__(self, read: Callable[[int, int], bytes], nbytes: int) -> None:
        """Begin.

        Args:
            read: returns so many bytes at an offset.
            nbytes: of the file.
        """
        self._read = read
        self._nbytes = nbytes
        self._position = 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be sought."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._nbytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the place."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to as many bytes as a buffer has, and return how many."""
        nbytes = max(0, min(len(buffer), self._nbytes - self._position))
        buffer[:nbytes] = self._read(self._position, nbytes)
        self._position += nbytes
        return nbytes
