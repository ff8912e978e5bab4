"""The rows of files as sources of a pipeline: records, lines of text, numpy arrays.

They are read from the front, or addressed by an index; those of .npy and .npz files where they lie in the
file.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from dtrain.data.node import FromEach, Indices, Iteration, Node, each_in_blocks, runs_of
from dtrain.data.record_index.index_files import Offsets, RecordIndex, index_of
from dtrain.data.sources import Slices
from dtrain.data.stores.opening import (
    ReadableFile,
    RowReader,
    check_unchanged,
    open_file,
    open_stream,
    opened,
)
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.numpy_file import ArrayInFile, read_arrays, stored_arrays
from dtrain.formats.tfrecord import check_compression, record_offsets, records_from, records_in
from dtrain.types import Array

LINE_BYTES_MAX = 64 << 20
"""Bytes of one line of text: a file without line breaks is no file of lines."""
SCANNED_BYTES = 4 << 20


class RowFormat:
    """Base of kinds of files of rows, each of which is some bytes.

    An `obstacle` tells the user why no row can be read without those before it; where it is empty, `scan`
    finds the rows.
    """

    kind: str
    spec: Any = TensorSpec((), "string")

    def __init__(self, compression: str = "") -> None:
        check_compression(compression)
        self._compression = compression
        self.obstacle = f"files that are compressed as a whole ({compression})" if compression else ""

    def read(self, path: str) -> Iterator[Element]:
        raise NotImplementedError

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        """Return the offset of each row and that of the end; raise an `InputError` for a damaged file."""
        raise NotImplementedError

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        return [self.row(part, path, offset) for part, offset in zip(parts, offsets, strict=True)]

    def row(self, data: bytes, path: str, offset: int) -> Element:
        raise NotImplementedError


class TfRecords(RowFormat):
    """TFRecord files."""

    kind = "tfrecord"

    def read(self, path: str) -> Iterator[Element]:
        with open_stream(path) as file:
            yield from records_from(file, shown(path), self._compression)

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        return record_offsets(file.read, nbytes, file.path)

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        return list(records_in(parts, offsets, path))


class TextLines(RowFormat):
    """Text files; lines are bytes without their ends."""

    kind = "lines"

    def read(self, path: str) -> Iterator[Element]:
        with open_stream(path) as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise InputError(f"{shown(path)}: found a line of more than {LINE_BYTES_MAX} bytes.")
                yield line.removesuffix(b"\n").removesuffix(b"\r")

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        found = [np.zeros(1, np.int64)]
        for start in range(0, nbytes, SCANNED_BYTES):
            block = file.read(start, min(SCANNED_BYTES, nbytes - start))
            found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (start + 1))
        return with_end(found, nbytes, f"{file.path}: found a line of more than {LINE_BYTES_MAX} bytes.")

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        return [part.removesuffix(b"\n").removesuffix(b"\r") for part in parts]


def with_end(found: Sequence[np.ndarray[Any, np.dtype[np.int64]]], nbytes: int, too_long: str) -> Offsets:
    """Return where rows begin, and the end of a file of `nbytes`, whose last row may have no line break."""
    offsets = np.concatenate(found)
    if offsets[-1] < nbytes:
        offsets = np.append(offsets, nbytes)
    if np.diff(offsets).max(initial=0) > LINE_BYTES_MAX:
        raise InputError(too_long)
    return offsets.astype(np.uint64)


class FileSource(Node):
    """Base of sources that read one file: a pipeline with one can be dealt to workers by its files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = (path,)


class FileColumns(FromEach, FileSource):
    """Base of sources that read the columns of one file: `elements` is an array, or a dict of such."""

    addressable = True

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        columns = self.elements(indices, iteration)
        if isinstance(columns, dict):
            return [
                {name: column[number] for name, column in columns.items()} for number in range(len(indices))
            ]
        return list(columns)


class FileRows(FileSource):
    """The rows of one file, read from front to back."""

    def __init__(self, path: str, row_format: RowFormat) -> None:
        super().__init__(path)
        self.format = row_format

    @property
    def spec(self) -> Any:
        return self.format.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self.format.read(self.path)

    def addressed(self) -> "FileRows":
        """Return the same rows with an index, which may be built for that; without one where none can be."""
        if self.format.obstacle:
            return self
        return IndexedRows(self.path, self.format, index_of(self.path, self.format))


class IndexedRows(FromEach, FileRows):
    """The rows of one file, of which any can be read at once."""

    addressable = True

    def __init__(self, path: str, row_format: RowFormat, index: RecordIndex) -> None:
        super().__init__(path, row_format)
        self.index = index
        self.cardinality = len(index)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        numbers = np.asarray(indices, np.int64)
        if not len(numbers):
            return []
        file = opened(self.path)
        self.index.check(file)
        starts, ends = self.index.offsets[numbers].tolist(), self.index.offsets[numbers + 1].tolist()
        ranges = list(zip(starts, ends, strict=True))
        for begin, end in ranges:
            if not 0 <= begin <= end <= self.index.facts.nbytes:
                raise InputError(
                    f"{file.path}: its index {self.index.kept_at} names bytes {begin} to {end} of "
                    f"{self.index.facts.nbytes}; the index is damaged: remove it, and it is built anew"
                )
        return self.format.rows(file.read_ranges(ranges), file.path, starts)


READ_BYTES_MAX = 8 << 20
TOGETHER_BYTES = 1 << 20
"""Bytes of rows that are read at once from front to back."""


class NumpyRows(FileColumns):
    """The rows of a .npy file, or of the arrays of a .npz file, as a dict of their names.

    What is compressed, or lies in Fortran's order, is read into memory as a whole.
    """

    computed = frozenset({"_memory"})

    def __init__(self, path: str) -> None:
        """Read the headers; raise an `InputError` for a damaged file, or arrays of different lengths."""
        super().__init__(path)
        where = shown(path)
        with open_stream(path) as file:
            stored = stored_arrays(file, where)
            arrays = {} if stored else read_arrays(file, where)
        self._memory = None if stored else Slices(arrays.get("", arrays))
        self._stored = stored or {}
        self._facts = open_file(path).facts()
        shapes = {name: each.shape for name, each in self._stored.items()}
        if any(not shape for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
            raise InputError(f"{where}: expected arrays with as many rows, found the shapes {shapes}")
        self.cardinality = self._memory.cardinality if self._memory else next(iter(shapes.values()))[0]

    @property
    def spec(self) -> Any:
        if self._memory is not None:
            return self._memory.spec
        specs = {name: TensorSpec(each.shape[1:], each.dtype) for name, each in self._stored.items()}
        return specs.get("", specs)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        row_bytes = sum(each.dtype.itemsize * prod(each.shape[1:]) for each in self._stored.values())
        return each_in_blocks(self, max(1, TOGETHER_BYTES // max(1, row_bytes)), iteration)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        if self._memory is not None:
            return self._memory.elements(indices, iteration)
        file = opened(self.path)
        numbers = np.asarray(indices, np.int64)
        columns = {name: self._rows(file, each, numbers) for name, each in self._stored.items()}
        check_unchanged(file, self._facts.state)
        return columns.get("", columns)

    def _rows(self, file: ReadableFile, array: ArrayInFile, numbers: np.ndarray[Any, Any]) -> Array:
        rows = np.empty((len(numbers), *array.shape[1:]), array.dtype)
        if not rows.nbytes:
            return rows
        row_bytes = rows.nbytes // len(numbers)
        runs = list(runs_of(numbers, max(1, READ_BYTES_MAX // row_bytes)))
        ranges = []
        for begin, end in runs:
            place = array.offset + int(numbers[begin]) * row_bytes
            ranges.append((place, place + (end - begin) * row_bytes))
        for (begin, end), data in zip(runs, file.read_ranges(ranges), strict=True):
            rows[begin:end] = np.frombuffer(data, array.dtype).reshape(end - begin, *array.shape[1:])
        return rows
