"""Looks at files of data, for `dtrain data`: their kind, rows and indexes."""

import glob
import time
import warnings
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import PurePath

import msgspec
import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.examples import Feature, decode_example
from dtrain.data.experimental import make_csv_dataset
from dtrain.data.readers.csv_format import CsvRows
from dtrain.data.readers.parquet_rows import ParquetRows
from dtrain.data.readers.rows import (
    FileSource,
    IndexedRows,
    NumpyRows,
    RowFormat,
    TextLines,
    TfRecords,
)
from dtrain.data.readers.tar_format import TarExamples, suffixes_of_first
from dtrain.data.record_index.index_files import (
    INDEXED_BYTES_MIN,
    RecordIndex,
    index_of,
    kept_index,
    places_of,
    scanned_index,
)
from dtrain.data.stores.opening import open_file
from dtrain.data.stores.remote import shown
from dtrain.data.structure import TensorSpec
from dtrain.errors import InputError
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


class InspectedFile(msgspec.Struct, frozen=True):
    """A file of rows of one of KINDS; `compression` is of the file as a whole: empty or GZIP.

    `header` says whether the first row of a .csv file names its columns.
    """

    path: str
    kind: str
    compression: str = ""
    header: bool = True

    @property
    def format(self) -> RowFormat | None:
        """The form of rows without any choice of columns; None: the file says itself where each row lies."""
        if self.kind == CSV:
            return CsvRows([], fields=None, compression=self.compression, header=self.header)
        if self.kind == TAR:
            return TarExamples((), compressed=bool(self.compression))
        if self.kind == TFRECORD:
            return TfRecords(self.compression)
        return TextLines(self.compression) if self.kind == TEXT else None

    @property
    def obstacle(self) -> str:
        return (self.format or RowFormat(self.compression)).obstacle


def data_file(path: str, kind: str | None = None, *, header: bool = True) -> InspectedFile:
    """Return a file of a kind; by default its name tells the kind, else its first bytes."""
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
    return InspectedFile(path, found, compression, header)


def _kind_of(head: bytes) -> str | None:
    if len(head) >= HEADER.size:
        _, checksum = HEADER.unpack_from(head)
        if masked_crc32c(head[:8]) == checksum:
            return TFRECORD
    if head[257:262] == b"ustar":
        return TAR
    magics = {b"PAR1": PARQUET, b"\x93NUMPY": NPY, b"PK\x03\x04": NPZ}
    return next((kind for magic, kind in magics.items() if head.startswith(magic)), None)


class IndexState(StrEnum):
    """The index of a file, as `dtrain data` says it."""

    BUILT = "built"
    THERE = "there"
    STALE = "stale"
    ABSENT = "absent"
    NOT_NEEDED = "not needed"
    IMPOSSIBLE = "impossible"


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows can be addressed; small ones and those that say where rows are need no index."""

    file: str
    format: str
    rows: int
    bytes: int
    seconds: float
    index: IndexState
    index_file: str | None


def build_index(file: InspectedFile) -> Indexed:
    """Build the index of a file, unless it is there.

    An `InputError` says that the file cannot be addressed, or its index cannot be kept.
    """
    if file.obstacle:
        raise InputError(
            f"{shown(file.path)}: {file.obstacle} can only be read from the front, and have no index; "
            "decompress the file"
        )
    begun_s = time.perf_counter()
    nbytes = open_file(file.path).state()[0]
    state, kept_at = IndexState.NOT_NEEDED, None
    if (row_format := file.format) is None:
        rows = _addressed(file).cardinality
    else:
        was_there = kept_index(file.path, row_format) is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it stands in `not_kept` too
            index = index_of(file.path, row_format)
        if index.not_kept:
            raise InputError(f"{shown(file.path)}: {index.not_kept}; a run keeps it in its own folder")
        rows, kept_at = len(index), index.kept_at
        if kept_at is not None:
            state = IndexState.THERE if was_there else IndexState.BUILT
    return Indexed(
        file=shown(file.path),
        format=file.kind,
        rows=rows,
        bytes=nbytes,
        seconds=round(time.perf_counter() - begun_s, 6),
        index=state,
        index_file=None if kept_at is None else str(kept_at),
    )


def _addressed(file: InspectedFile) -> FileSource:
    return ParquetRows(file.path, None) if file.kind == PARQUET else NumpyRows(file.path)


SAMPLED_ROWS = 256
"""Rows, spread over a file, in which is looked for the form of all."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A column or feature; its name is empty where a row has no parts, `string` is bytes and text.

    A length of `shape` is None where it varies; `rows` counts the sampled rows that have the field.
    """

    name: str
    dtype: str
    shape: list[int | None]
    rows: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A file of data; `sampled` of its rows were looked at for its fields; see `InspectedFile.obstacle`."""

    file: str
    format: str
    compression: str | None
    rows: int
    bytes: int
    index: IndexState
    fields: list[Field]
    sampled: int
    obstacle: str | None


def describe(file: InspectedFile) -> Description:
    nbytes = open_file(file.path).state()[0]
    state, index = _state_of_index(file, nbytes)
    samples: list[bytes] = []
    if (row_format := file.format) is None:
        rows = _addressed(file).cardinality
    elif file.obstacle:
        if file.kind == TEXT:
            raise InputError(f"{file.path}: lines that are compressed are not read; decompress the file")
        read = row_format.read(file.path)
        samples = list(islice(read, SAMPLED_ROWS))
        rows = len(samples) + sum(1 for _ in read)
    else:
        index = index or scanned_index(file.path, row_format)
        rows = len(index)
        if file.kind == TFRECORD:
            numbers = np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.int64)
            samples = IndexedRows(file.path, row_format, index).each(numbers, (0,))
    sampled = min(rows, SAMPLED_ROWS)
    return Description(
        file=shown(file.path),
        format=file.kind,
        compression=file.compression or None,
        rows=rows,
        bytes=nbytes,
        index=state,
        fields=(_fields_of_examples(samples) if file.kind == TFRECORD else None) or _fields(file, sampled),
        sampled=sampled,
        obstacle=file.obstacle or None,
    )


def _state_of_index(file: InspectedFile, nbytes: int) -> tuple[IndexState, RecordIndex | None]:
    """Return the state of the index that is kept, and the index if it fits; nothing is built."""
    if file.obstacle:
        return IndexState.IMPOSSIBLE, None
    if file.format is None or nbytes < INDEXED_BYTES_MIN:
        return IndexState.NOT_NEEDED, None
    if (index := kept_index(file.path, file.format)) is not None:
        return IndexState.THERE, index
    return IndexState.STALE if places_of(file.path)[0].exists() else IndexState.ABSENT, None


def _fields(file: InspectedFile, sampled: int) -> list[Field]:
    if file.kind == CSV:
        spec = _batches_of_csv(file).unbatch().element_spec
    elif file.kind == TAR:
        compressed = bool(file.compression)
        spec = TarExamples(suffixes_of_first(file.path, compressed=compressed), compressed=compressed).spec
    else:
        spec = (file.format or _addressed(file)).spec
    columns: Mapping[str, TensorSpec] = spec if isinstance(spec, dict) else {"": spec}
    return [
        Field(name=name, dtype=each.dtype, shape=list(each.shape), rows=sampled)
        for name, each in columns.items()
    ]


def _batches_of_csv(file: InspectedFile) -> Dataset:
    names = None
    if not file.header:
        rows = CsvRows([], fields=None, compression=file.compression).fields_of(file.path)
        names = [str(number) for number in range(len(next(rows, [])))]
    return make_csv_dataset(
        file.path if is_url(file.path) else glob.escape(file.path),
        SAMPLED_ROWS,
        column_names=names,
        header=file.header,
        compression_type=file.compression,
        num_epochs=1,
        shuffle=False,
    )


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
