"""A description of a file of data: how many rows it has, and what is in them."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.examples import Feature, decode_example
from dtrain.data.files import TFRecordDataset
from dtrain.data.inspection.file_kinds import TEXT, TFRECORD, DataFile, batches_of
from dtrain.data.inspection.indexing import IndexState, rows_without_index, state_of_index
from dtrain.data.readers.rows import IndexedRows
from dtrain.data.record_index.index_files import scanned_index
from dtrain.data.stores.opening import open_file
from dtrain.data.stores.remote import shown
from dtrain.data.structure import TensorSpec
from dtrain.errors import InputError

DTYPES = ("string", "float32", "int64")
"""Those of features."""
SAMPLED_ROWS = 256
"""Rows, spread over a file, in which is looked for the form of all."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A part of each row.

    Attributes:
        name: of the column or feature; empty where a row has no parts.
        dtype: of its values: `string` is bytes and text.
        shape: of its values in one row; None where a length varies.
        rows: in how many of the rows that were looked at it is.
    """

    name: str
    dtype: str
    shape: list[int | None]
    rows: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A file of data.

    Attributes:
        file: its path.
        format: its kind.
        compression: of the file as a whole; None: it has none.
        rows: how many it has.
        bytes: of the file.
        index: whether it has one.
        fields: of each row.
        sampled: how many rows were looked at for that.
        obstacle: why no row can be read without those before it; None: it can.
    """

    file: str
    format: str
    compression: str | None
    rows: int
    bytes: int
    index: IndexState
    fields: list[Field]
    sampled: int
    obstacle: str | None


def describe(file: DataFile) -> Description:
    """Return the description of a file; nothing is written.

    Raises:
        InputError: the file is damaged or cannot be read.
    """
    state, rows, samples = _rows_of(file)
    return Description(
        file=shown(file.path),
        format=file.kind,
        compression=file.compression or None,
        rows=rows,
        bytes=open_file(file.path).state()[0],
        index=state,
        fields=_fields(file, samples, min(rows, SAMPLED_ROWS)),
        sampled=min(rows, SAMPLED_ROWS),
        obstacle=file.obstacle or None,
    )


def _rows_of(file: DataFile) -> tuple[IndexState, int, list[bytes]]:
    """Return the state of the index, the number of rows, and some of the rows, of records and lines alone."""
    state, index = state_of_index(file)
    if not file.is_indexed:
        return state, rows_without_index(file), []
    row_format = file.format
    if row_format.scanner is None or file.obstacle:
        return state, *_read_through(file)
    index = index or scanned_index(file.path, row_format.scanner)
    if file.kind not in (TFRECORD, TEXT):
        return state, len(index), []
    numbers = np.linspace(0, len(index) - 1, min(len(index), SAMPLED_ROWS)).astype(np.int64)
    return state, len(index), IndexedRows(file.path, row_format, index).each(numbers, (0,))


def _read_through(file: DataFile) -> tuple[int, list[bytes]]:
    """Return the number of rows of a compressed file, and the first ones of records."""
    if file.kind != TFRECORD:
        return sum(_length(batch) for batch in batches_of([file], SAMPLED_ROWS)), []
    records = iter(TFRecordDataset(file.path, file.compression))
    samples: list[bytes] = list(islice(records, SAMPLED_ROWS))
    return len(samples) + sum(1 for _ in records), samples


def _length(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


def _fields(file: DataFile, samples: Sequence[bytes], sampled: int) -> list[Field]:
    if file.kind in (TFRECORD, TEXT):
        found = _fields_of_examples(samples) if file.kind == TFRECORD else None
        return found or [Field(name="", dtype="string", shape=[], rows=sampled)]
    spec = Dataset(batches_of([file], SAMPLED_ROWS).node).element_spec
    columns: Mapping[str, TensorSpec] = spec if isinstance(spec, dict) else {"": spec}
    return [
        Field(name=name, dtype=each.dtype, shape=list(each.shape[1:]), rows=sampled)
        for name, each in columns.items()
    ]


def _fields_of_examples(samples: Sequence[bytes]) -> list[Field] | None:
    """Return the features of records; None if one of them is no tf.train.Example, or none has a feature."""
    found: dict[str, list[Feature]] = {}
    try:
        for sample in samples:
            for name, feature in decode_example(sample).items():
                found.setdefault(name, []).append(feature)
    except InputError:
        return None
    return [_field_of_feature(name, found[name]) for name in sorted(found)] or None


def _field_of_feature(name: str, values: Sequence[Feature]) -> Field:
    lengths = {0 if value is None else len(value) for value in values}
    dtypes = {
        value.dtype.name if isinstance(value, np.ndarray) else "string"
        for value in values
        if value is not None
    }
    return Field(
        name=name,
        dtype=" or ".join(sorted(dtypes)) or "string",
        shape=[lengths.pop() if len(lengths) == 1 else None],
        rows=len(values),
    )
