"""The kind of a file of data, by its name or its first bytes, and the source of its rows."""

import csv
import glob
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.data.experimental.csv_datasets import make_csv_dataset
from dtrain.data.files import NumpyDataset, ParquetDataset, TarDataset, TextLineDataset, TFRecordDataset
from dtrain.data.readers.csv_format import CsvRows
from dtrain.data.readers.rows import Lines, Records, RowFormat
from dtrain.data.readers.tar_format import TarExamples, suffixes_of_first
from dtrain.data.stores.opening import open_file, open_stream
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.crc32c import masked_crc32c
from dtrain.formats.expansion import decompressed
from dtrain.formats.remote_files import is_url
from dtrain.formats.tfrecord import HEADER

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
        except (OSError, EOFError, csv.Error, zlib.error) as error:
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
