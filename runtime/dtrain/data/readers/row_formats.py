"""The kinds of files of rows: records and lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from dtrain.data.record_index.index_files import Offsets, Scanner
from dtrain.data.stores.local import unreadable
from dtrain.data.stores.opening import RowReader, open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.tfrecord import record_offsets, records_from, records_in

LINE_BYTES_MAX = 64 << 20
"""Bytes of one line of text: a file without line breaks is no file of lines."""
SCANNED_BYTES = 4 << 20


class RowFormat(Protocol):
    """A kind of file of rows.

    Attributes:
        scanner: finds the rows of a file; None where none can be read without those before it.
        obstacle: why that is so, for the user.
    """

    scanner: Scanner | None
    obstacle: str

    @property
    def spec(self) -> Any:
        """Return the structure of `TensorSpec`s that every row fits."""

    def read(self, path: str) -> Iterator[Element]:
        """Yield the rows of a file from front to back; raise an `InputError` if it is damaged."""

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        """Return the rows that some parts of a file are; raise an `InputError` if one is damaged."""


class Records:
    """TFRecord files; see `formats.tfrecord`."""

    kind = "tfrecord"
    spec = TensorSpec((), "string")

    def __init__(self, compression: str) -> None:
        """Begin; `compression` is empty, GZIP or ZLIB."""
        self._compression = compression
        self.scanner: Scanner | None = None if compression else self
        self.obstacle = f"files that are compressed as a whole ({compression})" if compression else ""

    def read(self, path: str) -> Iterator[Element]:
        """Yield the records, in bytes."""
        try:
            with open_stream(path) as file:
                yield from records_from(file, shown(path), self._compression)
        except OSError as error:
            raise unreadable(path, error) from error

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        """Hop from header to header."""
        return record_offsets(file.read, nbytes, file.path)

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        """Return the data of records, checked."""
        return list(records_in(parts, offsets, path))


class Lines:
    """Text files."""

    kind = "lines"
    spec = TensorSpec((), "string")
    obstacle = ""

    def __init__(self) -> None:
        self.scanner: Scanner | None = self

    def read(self, path: str) -> Iterator[Element]:
        """Yield the lines, in bytes, without their ends."""
        return read_lines(path)

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        """Look for line breaks."""
        found = [np.zeros(1, np.uint64)]
        last = b""
        for start in range(0, nbytes, SCANNED_BYTES):
            last = file.read(start, min(SCANNED_BYTES, nbytes - start))
            breaks = np.flatnonzero(np.frombuffer(last, np.uint8) == ord("\n"))
            found.append((breaks + (start + 1)).astype(np.uint64))
        if last and not last.endswith(b"\n"):
            found.append(np.array([nbytes], np.uint64))
        offsets = np.concatenate(found)
        if np.diff(offsets).max(initial=0) > LINE_BYTES_MAX:
            raise InputError(f"{file.path}: found a line of more than {LINE_BYTES_MAX} bytes.")
        return offsets

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        """Return lines without their ends."""
        return [part.removesuffix(b"\n").removesuffix(b"\r") for part in parts]


def read_lines(path: str) -> Iterator[bytes]:
    """Yield a file's lines without line breaks; raise an `InputError` if it cannot be read so."""
    try:
        with open_stream(path) as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise InputError(f"{shown(path)}: found a line of more than {LINE_BYTES_MAX} bytes.")
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise unreadable(path, error) from error
