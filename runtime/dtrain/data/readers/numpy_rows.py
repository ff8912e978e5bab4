"""The rows of .npy and .npz files, which are read where they lie in the file."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from dtrain.data.node import Indices, Iteration
from dtrain.data.readers.file_rows import FileSource
from dtrain.data.sources import Slices
from dtrain.data.stores.local import FileFacts, unreadable
from dtrain.data.stores.opening import ReadableFile, open_file, open_stream, opened
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.numpy_file import ArrayInFile, read_npy, read_npz, size_of, stored_arrays
from dtrain.types import Array

READ_BYTES_MAX = 8 << 20
TOGETHER_BYTES = 1 << 20
"""Bytes of rows that are read at once from front to back."""


class NumpyRows(FileSource):
    """The rows of a .npy file, or of the arrays of a .npz file, as a dict of their names.

    What is compressed, or lies in Fortran's order, is read into memory as a whole.
    """

    addressable = True
    computed = frozenset({"_memory"})

    def __init__(self, path: str) -> None:
        """Read the headers.

        Raises:
            InputError: the file cannot be read, is damaged, or its arrays have different lengths.
        """
        super().__init__(path)
        where = shown(path)
        try:
            with open_stream(path) as file:
                stored = stored_arrays(file)
                arrays = None if stored is not None else self._in_memory(file)
        except OSError as error:
            raise unreadable(path, error) from error
        except InputError:
            raise
        except ValueError as error:
            raise InputError(
                f"{where}: expected a file of numpy arrays of numbers or text: {error}"
            ) from None
        self._memory = None if arrays is None else Slices(arrays)
        self._stored = stored or {}
        self._facts = open_file(path).facts()
        shapes = {name: each.shape for name, each in self._stored.items()}
        if any(not shape for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
            raise InputError(f"{where}: expected arrays with as many rows, found the shapes {shapes}")
        self.cardinality = self._memory.cardinality if self._memory else next(iter(shapes.values()))[0]

    @staticmethod
    def _in_memory(file: Any) -> Any:
        nbytes = size_of(file)
        is_archive = file.read(2) == b"PK"
        file.seek(0)
        return read_npz(file) if is_archive else read_npy(file, nbytes)

    @property
    def spec(self) -> Any:
        if self._memory is not None:
            return self._memory.spec
        specs = {name: TensorSpec(each.shape[1:], each.dtype) for name, each in self._stored.items()}
        return specs.get("", specs)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        row_bytes = sum(each.dtype.itemsize * prod(each.shape[1:]) for each in self._stored.values())
        rows = max(1, TOGETHER_BYTES // max(1, row_bytes))
        for start in range(0, self.cardinality, rows):
            yield from self.each(range(start, min(start + rows, self.cardinality)), iteration)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self.each(range(index, index + 1), iteration)[0]

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        rows = self.elements(indices, iteration)
        if isinstance(rows, dict):
            return [{name: column[number] for name, column in rows.items()} for number in range(len(indices))]
        return list(rows)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        if self._memory is not None:
            return self._memory.elements(indices, iteration)
        file = opened(self.path)
        numbers = np.asarray(indices, np.int64)
        columns = {name: self._rows(file, each, numbers) for name, each in self._stored.items()}
        _check(self._facts, file)
        return columns.get("", columns)

    def _rows(self, file: ReadableFile, array: ArrayInFile, numbers: np.ndarray[Any, Any]) -> Array:
        rows = np.empty((len(numbers), *array.shape[1:]), array.dtype)
        if not rows.nbytes:
            return rows
        row_bytes = rows.nbytes // len(numbers)
        ends = np.flatnonzero(np.diff(numbers, append=-2) != 1) + 1
        starts = np.concatenate([[0], ends[:-1]])
        step = max(1, READ_BYTES_MAX // row_bytes)
        runs = [
            (begin, min(begin + step, end))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            for begin in range(start, end, step)
        ]
        places = [array.offset + int(numbers[begin]) * row_bytes for begin, _ in runs]
        ranges = [
            (place, place + (end - begin) * row_bytes)
            for place, (begin, end) in zip(places, runs, strict=True)
        ]
        for (begin, end), data in zip(runs, file.read_ranges(ranges), strict=True):
            rows[begin:end] = np.frombuffer(data, array.dtype).reshape(end - begin, *array.shape[1:])
        return rows


def _check(facts: FileFacts, file: ReadableFile) -> None:
    if file.state() != facts.state:
        raise InputError(
            f"{file.path}: was changed while it was in use; write new data into a new file, and start again"
        )
