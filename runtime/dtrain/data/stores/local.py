"""Local files, of which any range can be read, by several threads at once."""

import os
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from dtrain.data.stores.ranges import parts, together
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import open_regular
from dtrain.formats.remote_files import masked

READ_BYTES_MAX = 8 << 20
"""Bytes that are read at once where ranges are neighbours."""
BLOCK_BYTES = 64 * 1024
"""Bytes at either end of a file that tell it from another one."""
SAMPLES = 16
SAMPLE_BYTES = 4096
"""Bytes of each of the samples between both ends that tell it, too."""

FileState = tuple[int, int, str]
"""The size of a file in bytes, when it was changed last in ns since 1970, and the version of one at a URL."""


class FileFacts(msgspec.Struct, frozen=True):
    """Facts that tell a file from another one: checksums of both ends, and of samples between them.

    A store tells the `version` of a file at a URL in the place of checksums and time.
    """

    nbytes: int
    mtime_ns: int
    first_crc32: int
    last_crc32: int
    version: str = ""
    samples_crc32: int = 0

    @property
    def state(self) -> FileState:
        return self.nbytes, self.mtime_ns, self.version


class OpenFile:
    """A file that is open for reading ranges; it is closed with the last reference to it.

    An `InputError` says that it cannot be opened or read, or ends before a range.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor: int = -1
        try:
            self.descriptor = open_regular(path)
        except OSError as error:
            raise unreadable(path, error) from error

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def state(self) -> FileState:
        facts = os.fstat(self.descriptor)
        return facts.st_size, facts.st_mtime_ns, ""

    def facts(self) -> FileFacts:
        nbytes, mtime_ns, _ = self.state()
        first = zlib.crc32(self.read(0, min(BLOCK_BYTES, nbytes)))
        last_start = max(0, nbytes - BLOCK_BYTES)
        last = zlib.crc32(self.read(last_start, nbytes - last_start))
        return FileFacts(nbytes, mtime_ns, first, last, samples_crc32=self._samples_crc32(nbytes))

    def _samples_crc32(self, nbytes: int) -> int:
        between = nbytes - 2 * BLOCK_BYTES - SAMPLE_BYTES
        if between < 0:
            return 0
        found = 0
        for number in range(SAMPLES):
            start = BLOCK_BYTES + between * number // (SAMPLES - 1)
            found = zlib.crc32(self.read(start, SAMPLE_BYTES), found)
        return found

    def read(self, start: int, nbytes: int) -> bytes:
        try:
            data = os.pread(self.descriptor, nbytes, start)
            while len(data) < nbytes and (
                more := os.pread(self.descriptor, nbytes - len(data), start + len(data))
            ):
                data += more
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) < nbytes:
            raise InputError(
                f"{self.path}: expected {nbytes} bytes at byte {start}, found {len(data)}: the file has "
                "become shorter"
            )
        return data

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        covering = together(ranges, 0, READ_BYTES_MAX)
        return parts(ranges, covering, [self.read(begin, end - begin) for begin, end in covering])

    def in_blocks(self) -> "OpenFile":
        return self  # small reads cost little

    def stream(self) -> BinaryIO:
        """Return the bytes as a file that can be read and sought; only one such may be in use at a time."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return open(self.descriptor, "rb", closefd=False)


def unreadable(path: str, error: OSError) -> InputError:
    return InputError(masked(f"{path}: cannot be read: {error.strerror or error}."))
