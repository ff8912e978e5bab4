"""Datasets of files of rows: records, lines, numpy arrays, Parquet, archives; and `list_files`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.data.joining import Interleaved
from dtrain.data.node import Node
from dtrain.data.readers.parquet_rows import ParquetRows
from dtrain.data.readers.rows import FileRows, NumpyRows, RowFormat, TextLines, TfRecords
from dtrain.data.readers.tar_format import TarExamples
from dtrain.data.sources import Slices
from dtrain.errors import InputError

Filenames = str | Path | Sequence[str | Path] | Dataset


class TFRecordDataset(Dataset):
    """The records of TFRecord files, in bytes.

    Args:
        filenames: one path, several, or a Dataset of paths.
        compression_type: empty, GZIP or ZLIB.
        num_parallel_reads: how many files are read in turn, a record of each; default: one after another.
    """

    def __init__(
        self, filenames: Filenames, compression_type: str | None = None, num_parallel_reads: int | None = None
    ) -> None:
        super().__init__(rows_of_files(filenames, TfRecords(compression_type or ""), num_parallel_reads))


class TextLineDataset(Dataset):
    """The lines of text files, in bytes, without their ends.

    Args:
        filenames: one path, several, or a Dataset of paths.
        num_parallel_reads: how many files are read in turn, a line of each; default: one after another.
    """

    def __init__(self, filenames: Filenames, num_parallel_reads: int | None = None) -> None:
        super().__init__(rows_of_files(filenames, TextLines(), num_parallel_reads))


class ParquetDataset(Dataset):
    """The rows of Parquet files, as dicts of columns: numbers, text as bytes, lists of one length.

    Needs pyarrow: ``pip install -e '.[data]'`` in dtrain's clone.

    Args:
        filenames: one path, several, or a Dataset of paths.
        columns: the wanted ones; default: all.
        num_parallel_reads: how many files are read in turn, a row of each; default: one after another.
    """

    def __init__(
        self,
        filenames: Filenames,
        columns: Sequence[str] | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        super().__init__(_of_files(filenames, lambda path: ParquetRows(path, columns), num_parallel_reads))


class NumpyDataset(Dataset):
    """The rows of .npy files, or of the arrays of .npz files as dicts of their names.

    Args:
        filenames: one path, several, or a Dataset of paths.
        num_parallel_reads: how many files are read in turn, a row of each; default: one after another.
    """

    def __init__(self, filenames: Filenames, num_parallel_reads: int | None = None) -> None:
        super().__init__(_of_files(filenames, NumpyRows, num_parallel_reads))


class TarDataset(Dataset):
    """The examples of .tar files, as WebDataset writes them: members that share a name up to its first dot.

    An example is a dict of bytes: one for each suffix, and the shared name under ``__key__``.

    Args:
        filenames: one path, several, or a Dataset of paths.
        suffixes: the members that every example has, such as ``("jpg", "cls")``; others are left out.
        num_parallel_reads: how many files are read in turn, an example of each; default: one after another.
        compressed: whether files are compressed by gzip; they are then read from the front alone.
    """

    def __init__(
        self,
        filenames: Filenames,
        suffixes: Sequence[str],
        num_parallel_reads: int | None = None,
        compressed: bool = False,
    ) -> None:
        examples = TarExamples(tuple(suffixes), compressed=compressed)
        super().__init__(rows_of_files(filenames, examples, num_parallel_reads))


def list_files(file_pattern: str | Sequence[str], shuffle: bool = True, seed: int | None = None) -> Dataset:
    """Return `Dataset.list_files` of the same arguments.

    Args:
        file_pattern: one or several patterns, such as ``data/*.csv``.
        shuffle: whether the paths are in a drawn order, anew in each iteration.
        seed: of that order; None: the run's.
    """
    return Dataset.list_files(file_pattern, shuffle, seed)


def rows_of_files(filenames: Filenames, row_format: RowFormat, num_parallel_reads: int | None = None) -> Node:
    return _of_files(filenames, lambda path: FileRows(path, row_format), num_parallel_reads)


def _of_files(filenames: Filenames, make: Callable[[str], Node], num_parallel_reads: int | None) -> Node:
    names = filenames.node if isinstance(filenames, Dataset) else Slices(_listed(filenames))
    return Interleaved(names, lambda name: make(_text(name)), max(1, num_parallel_reads or 1), 1)


def _listed(filenames: Any) -> list[str]:
    paths = str, bytes, Path
    is_one = isinstance(filenames, paths) or not isinstance(filenames, Iterable)
    listed = [filenames] if is_one else list(filenames)
    if not all(isinstance(name, paths) for name in listed):
        raise InputError(
            f"filenames: expected a path, a list of paths or a Dataset of them, found {filenames!r}"
        )
    return [_text(name) for name in listed]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
