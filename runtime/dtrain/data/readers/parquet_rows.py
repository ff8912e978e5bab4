"""The rows of Parquet files; the footer of a file says where each group of rows lies."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dtrain.data.node import Indices, Iteration
from dtrain.data.readers.rows import FileColumns
from dtrain.data.stores.opening import check_unchanged, open_file
from dtrain.data.stores.remote import RangeStream
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import check_growth
from dtrain.types import Array

TEXT = "BYTE_ARRAY"
VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, TEXT: 8}
"""Bytes of a decoded value of a physical type; of a text those of its place."""
GROUPS_KEPT = 4
"""Groups of rows, decoded, that stay in memory for each file."""


class ParquetRows(FileColumns):
    """The rows of a Parquet file, as dicts of columns of numbers, text, bytes, or lists of one length."""

    computed = frozenset({"_open", "_state", "_file", "_group"})

    def __init__(self, path: str, columns: Sequence[str] | None) -> None:
        """Read the footer; raise an `InputError` if pyarrow, the file or a wanted column is missing."""
        super().__init__(path)
        self._open = open_file(path)
        self._where = self._open.path
        self._state = self._open.state()
        self._file = self._opened()
        names = self._file.schema_arrow.names
        for name in columns or ():
            if name not in names:
                raise InputError(
                    f"{self._where}: there is no column {name!r}; expected one of {', '.join(names)}"
                )
        self._columns = list(names if columns is None else columns)
        metadata = self._file.metadata
        lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._ends = np.cumsum(np.array([0, *lengths], np.int64))
        self.cardinality = int(self._ends[-1])
        self._texts = self._checked_texts()
        self._group = lru_cache(GROUPS_KEPT)(self._read_group)

    @property
    def spec(self) -> Any:
        if self.cardinality:
            group = self._group(0)
            return {name: TensorSpec(array.shape[1:], array.dtype) for name, array in group.items()}
        schema = self._file.schema_arrow
        empty = {name: _dtype(schema.field(name).type, self._where, name) for name in self._columns}
        return {name: TensorSpec((), dtype) for name, dtype in empty.items()}

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        numbers = np.asarray(indices, np.int64)
        groups = np.searchsorted(self._ends, numbers, "right") - 1
        found: dict[str, Array] = {}
        for group in np.unique(groups).tolist():
            chosen = groups == group
            for name, column in self._group(group).items():
                rows = column[numbers[chosen] - self._ends[group]]
                if name not in found:
                    found[name] = np.empty((len(numbers), *rows.shape[1:]), rows.dtype)
                found[name][chosen] = rows
        return found

    def _checked_texts(self) -> list[str]:
        """Return the columns in which equal texts stand once; raise an `InputError` for too much growth."""
        wanted, metadata = set(self._columns), self._file.metadata
        texts: set[str] = set()
        grown = 0
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for number in range(metadata.num_columns):
                chunk = group.column(number)
                if chunk.path_in_schema.partition(".")[0] in wanted:
                    nbytes = VALUE_BYTES.get(chunk.physical_type) or metadata.schema.column(number).length
                    grown += chunk.num_values * nbytes + max(0, chunk.total_uncompressed_size)
                    if chunk.physical_type == TEXT and any("DICTIONARY" in each for each in chunk.encodings):
                        texts.add(chunk.path_in_schema)
        check_growth(grown, self._state[0], self._where)
        return sorted(texts)

    def _read_group(self, number: int) -> dict[str, Array]:
        check_unchanged(self._open, self._state)
        try:
            # a reader serves one thread
            table = self._opened(self._texts).read_row_group(number, columns=self._columns)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"{self._where}: row group {number} is damaged: {_first_line(error)}") from None
        return {name: _decoded(table.column(name), self._where, name) for name in self._columns}

    def _opened(self, texts: Sequence[str] = ()) -> Any:
        try:
            from pyarrow import parquet  # 40 MB and half a second, so only where such a file is read
        except ImportError:
            raise InputError(
                f"{self._where}: reading Parquet needs pyarrow: `pip install -e '.[data]'` in dtrain's clone"
            ) from None
        try:
            if self._open.descriptor is not None:
                return parquet.ParquetFile(f"/proc/self/fd/{self._open.descriptor}", read_dictionary=texts)
            ranges = RangeStream(self._open.read, self._open.state()[0])
            # pre_buffer: columns beside each other by one request
            return parquet.ParquetFile(ranges, pre_buffer=True, read_dictionary=texts)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"{self._where}: expected a Parquet file: {_first_line(error)}") from None


def _decoded(column: Any, path: str, name: str) -> Array:
    """Return a column of a table as an array; text as bytes, as in files of records."""
    import pyarrow as pa

    array = column.combine_chunks()
    if array.null_count:
        raise InputError(
            f"{path}: column {name!r}: expected a value in every row, found {array.null_count} empty ones; "
            "leave the column out, or fill them"
        )
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = _decoded(pa.chunked_array([array.flatten()]), path, name)
        rows = len(array)
        lengths = len(values) // max(1, rows)
        if rows and array.value_lengths().unique().to_pylist() != [lengths]:
            raise InputError(f"{path}: column {name!r}: expected lists of one length, found several")
        return values.reshape(rows, lengths, *values.shape[1:])
    if pa.types.is_dictionary(kind):
        texts = _decoded(pa.chunked_array([array.dictionary]), path, name)
        each: Array = texts.take(array.indices.to_numpy())
        return each
    if _dtype(kind, path, name) == "string":
        texts = np.empty(len(array), object)
        texts[:] = array.cast(pa.large_binary()).to_pylist()
        return texts
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def _dtype(kind: Any, path: str, name: str) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):  # as categories of pandas are written
        return _dtype(kind.value_type, path, name)
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return "string"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        # `to_pandas_dtype` imports pandas in some versions
        return pa.array([], kind).to_numpy(zero_copy_only=False).dtype.type
    raise InputError(
        f"{path}: column {name!r}: expected numbers, text, bytes or lists of such, found {kind}; choose "
        "other columns by columns="
    )


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
