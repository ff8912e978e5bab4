"""The rows of one file, as a source of a pipeline: read from the front, or addressed by an index."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dtrain.data.node import Indices, Iteration, Node
from dtrain.data.readers.row_formats import RowFormat
from dtrain.data.record_index.index_files import RecordIndex, index_of
from dtrain.data.stores.opening import opened
from dtrain.data.structure import Element
from dtrain.errors import InputError


class FileSource(Node):
    """Base of sources that read one file: a pipeline with one can be dealt to workers by its files.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = (path,)


class FileRows(FileSource):
    """The rows of one file, read from front to back.

    Attributes:
        format: of its rows.
    """

    def __init__(self, path: str, row_format: RowFormat) -> None:
        super().__init__(path)
        self.format = row_format

    @property
    def spec(self) -> Any:
        return self.format.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self.format.read(self.path)

    def addressed(self) -> "FileRows":
        """Return the same rows with an index, which may be built for that; without one where none can be.

        Raises:
            InputError: the file cannot be read, or is damaged.
            WaitTimeoutError: another task takes too long to build the index.
        """
        if self.format.scanner is None:
            return self
        return IndexedRows(self.path, self.format, index_of(self.path, self.format.scanner))


class IndexedRows(FileRows):
    """The rows of one file, of which any can be read at once.

    Attributes:
        index: of the file.
    """

    addressable = True

    def __init__(self, path: str, row_format: RowFormat, index: RecordIndex) -> None:
        super().__init__(path, row_format)
        self.index = index
        self.cardinality = len(index)

    def addressed(self) -> FileRows:
        return self

    def element(self, index: int, iteration: Iteration) -> Element:
        return self.each(range(index, index + 1), iteration)[0]

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
