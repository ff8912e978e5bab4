"""Looks at files of data, for `dtrain data`: their kind, rows and indexes."""

import csv
import glob
import io
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import msgspec
import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.examples import Feature, decode_example
from dtrain.data.experimental import make_csv_dataset
from dtrain.data.files import NumpyDataset, ParquetDataset, TarDataset, TextLineDataset, TFRecordDataset
from dtrain.data.readers.csv_format import CsvRows
from dtrain.data.readers.rows import IndexedRows, Lines, Records, RowFormat
from dtrain.data.readers.tar_format import TarExamples, suffixes_of_first
from dtrain.data.record_index.addressing import addressed
from dtrain.data.record_index.index_files import (
    INDEXED_BYTES_MIN,
    RecordIndex,
    index_of,
    kept_index,
    places_of,
    scanned_index,
)
from dtrain.data.stores.opening import open_file, open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import TensorSpec
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import decompressed
from dtrain.formats.remote_files import is_url
from dtrain.formats.tfrecord import HEADER, masked_crc32c

HEAD_BYTES = 512
TFRECORD, TEXT, CSV, TAR, PARQUET, NPY, NPZ = KINDS = (
    *("tfrecord", "text", "csv", "tar", "parquet", "npy", "npz"),
)
SUFFIXES: Mapping[str, str] = {
    **dict.fromkeys((".tfrecord", ".tfrecords"), TFRECORD),
    **dict.fromkeys((".txt", ".text", ".jsonl", ".log"), TEXT),
    **{f".{kind}": kind for kind in (CSV, TAR, PARQUET, NPY, NPZ)},
}
COMPRESSED: Mapping[str, str] = {".gz": "", ".gzip": "", ".tgz": ".tar"}
"""Suffixes of files that gzip has compressed, and the suffix that each stands for besides."""
GZIP = "GZIP"


@dataclass(frozen=True)
class DataFile:
    """A file of rows.

    Attributes:
        path: of the file.
        kind: one of KINDS.
        compression: of the file as a whole: empty or GZIP.
        header: whether the first row of a .csv file names its columns.
    """

    path: str
    kind: str
    compression: str = ""
    header: bool = True

    @property
    def is_indexed(self) -> bool:
        """Whether an index is needed to find a row; other kinds say themselves where it lies."""
        return self.kind in (TFRECORD, TEXT, CSV, TAR)

    @property
    def format(self) -> RowFormat:
        """Return the form of rows of an indexed kind, without any choice of columns."""
        if self.kind == CSV:
            return CsvRows([], fields=None, compression=self.compression, header=self.header)
        if self.kind == TAR:
            return TarExamples((), compressed=bool(self.compression))
        return Records(self.compression) if self.kind == TFRECORD else Lines()

    @property
    def obstacle(self) -> str:
        """Return why no row can be read without those before it; empty: it can."""
        if not self.compression:
            return ""
        return (self.format.obstacle if self.is_indexed else "") or (
            f"files that are compressed as a whole ({self.compression})"
        )


def data_file(path: str, kind: str | None = None, *, header: bool = True) -> DataFile:
    """Return what kind of file a path names.

    Args:
        path: of the file.
        kind: one of KINDS; default: by the name, else by the first bytes.
        header: whether the first row of a .csv file names its columns.

    Raises:
        InputError: it cannot be read, or is of no known kind.
    """
    file = open_file(path)
    head = file.read(0, min(HEAD_BYTES, file.state()[0]))
    compression = GZIP if head.startswith(b"\x1f\x8b") else ""
    name = PurePath(shown(path).partition("?")[0])
    suffix = name.suffix.lower()
    if suffix in COMPRESSED:
        suffix = COMPRESSED[suffix] or PurePath(name.stem).suffix.lower()
    found = kind or SUFFIXES.get(suffix) or _kind_of(head)
    if found is None:
        raise InputError(
            f"{shown(path)}: is of no kind that is known by its name or its first bytes; say it with "
            f"--format: {', '.join(KINDS)}"
        )
    return DataFile(path, found, compression, header)


def _kind_of(head: bytes) -> str | None:
    if len(head) >= HEADER.size:
        _, checksum = HEADER.unpack_from(head)
        if masked_crc32c(head[:8]) == checksum:
            return TFRECORD
    if head[257:262] == b"ustar":
        return TAR
    magics = {b"PAR1": PARQUET, b"\x93NUMPY": NPY, b"PK\x03\x04": NPZ}
    return next((kind for magic, kind in magics.items() if head.startswith(magic)), None)


def batches_of(files: list[DataFile], rows: int) -> Dataset:
    """Return batches of the rows of files of one kind, one file after another, as a program would read them.

    Raises:
        InputError: a file is damaged, or cannot be read.
    """
    first = files[0]
    paths = [file.path for file in files]
    if first.kind == CSV:
        return _batches_of_csv(files, rows)
    if first.kind == TEXT:
        if first.compression:
            raise InputError(f"{first.path}: lines that are compressed are not read; decompress the file")
        return TextLineDataset(paths).batch(rows)
    if first.kind == TFRECORD:
        return TFRecordDataset(paths, first.compression).batch(rows)
    if first.kind == TAR:
        compressed = bool(first.compression)
        suffixes = suffixes_of_first(first.path, compressed=compressed)
        return TarDataset(paths, suffixes, compressed=compressed).batch(rows)
    dataset = ParquetDataset(paths) if first.kind == PARQUET else NumpyDataset(paths)
    return dataset.batch(rows)


def _batches_of_csv(files: list[DataFile], rows: int) -> Dataset:
    first = files[0]
    names = None
    if not first.header:
        try:
            with open_stream(first.path) as file:
                data: Any = decompressed(file, first.compression, shown(first.path))
                text = io.TextIOWrapper(data, newline="", errors="replace")
                names = [str(number) for number in range(len(next(csv.reader(text), [])))]
        except (EOFError, csv.Error, zlib.error) as error:
            raise InputError(f"{shown(first.path)}: expected comma-separated text: {error}") from error
    return make_csv_dataset(
        [file.path if is_url(file.path) else glob.escape(file.path) for file in files],
        rows,
        column_names=names,
        header=first.header,
        compression_type=first.compression,
        num_epochs=1,
        shuffle=False,
    )


class IndexState(StrEnum):
    """The index of a file, as `dtrain data` says it."""

    BUILT = "built"
    THERE = "there"
    STALE = "stale"
    ABSENT = "absent"
    NOT_NEEDED = "not needed"
    IMPOSSIBLE = "impossible"


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows can be addressed.

    Attributes:
        file: its path.
        format: its kind.
        rows: how many it has.
        bytes: of the file.
        seconds: that it took to find out.
        index: BUILT, THERE, or NOT_NEEDED for a small file or one that says itself where its rows are.
        index_file: that holds the index; None: no file.
    """

    file: str
    format: str
    rows: int
    bytes: int
    seconds: float
    index: IndexState
    index_file: str | None


def build_index(file: DataFile) -> Indexed:
    """Build the index of a file, unless it is there.

    Raises:
        InputError: the file is damaged, cannot be addressed, or its index cannot be kept.
        WaitTimeoutError: another task builds the index, and takes too long.
    """
    if file.obstacle:
        raise InputError(
            f"{shown(file.path)}: {file.obstacle} can only be read from the front, and have no index; "
            "decompress the file"
        )
    begun_s = time.perf_counter()
    nbytes = open_file(file.path).state()[0]
    state, index = (IndexState.NOT_NEEDED, None) if not file.is_indexed else _index(file)
    rows = rows_without_index(file) if index is None else len(index)
    return Indexed(
        file=shown(file.path),
        format=file.kind,
        rows=rows,
        bytes=nbytes,
        seconds=round(time.perf_counter() - begun_s, 6),
        index=state,
        index_file=None if index is None or index.kept_at is None else str(index.kept_at),
    )


def _index(file: DataFile) -> tuple[IndexState, RecordIndex]:
    scanner = file.format.scanner
    assert scanner is not None  # else there is an obstacle
    was_there = kept_index(file.path, scanner) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stands in `not_kept` too
        index = index_of(file.path, scanner)
    if index.not_kept:
        raise InputError(f"{shown(file.path)}: {index.not_kept}; a run keeps it in its own folder")
    if index.kept_at is None:
        return IndexState.NOT_NEEDED, index
    return IndexState.THERE if was_there else IndexState.BUILT, index


def state_of_index(file: DataFile) -> tuple[IndexState, RecordIndex | None]:
    """Return whether a file has an index that fits it, and that index; nothing is built.

    Raises:
        InputError: the file cannot be read.
    """
    if file.obstacle:
        return IndexState.IMPOSSIBLE, None
    scanner = file.format.scanner if file.is_indexed else None
    if scanner is None or open_file(file.path).state()[0] < INDEXED_BYTES_MIN:
        return IndexState.NOT_NEEDED, None
    if (index := kept_index(file.path, scanner)) is not None:
        return IndexState.THERE, index
    beside: Path = places_of(file.path)[0]
    return IndexState.STALE if beside.exists() else IndexState.ABSENT, None


def rows_without_index(file: DataFile) -> int:
    """Return the rows of a file that says itself how many it has.

    Raises:
        InputError: it is damaged.
    """
    return addressed(batches_of([file], 1).node).cardinality


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
