"""Datasets of files: `TFRecordDataset`, `TextLineDataset` and `list_files`."""

from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.data.joining import Interleaved
from dtrain.data.node import Iteration, Node
from dtrain.data.sources import Slices
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.regular_file import open_regular
from dtrain.formats.tfrecord import check_compression, read_records

LINE_BYTES_MAX = 64 << 20
"""Bytes of one line of text: a file without line breaks is no file of lines."""
Filenames = str | Path | Sequence[str | Path] | Dataset


class FileRows(Node):
    """The rows, in bytes, that a reader yields of one file."""

    def __init__(self, path: str, read: Callable[[str], Iterator[bytes]]) -> None:
        self._path = path
        self._read = read

    @property
    def spec(self) -> Any:
        """Return a `string`, TensorFlow's name of bytes."""
        return TensorSpec((), "string")

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        """Yield the file's rows; the first one opens it."""
        return self._read(self._path)


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
        compression = compression_type or ""
        check_compression(compression)
        super().__init__(_rows(filenames, lambda path: read_records(path, compression), num_parallel_reads))


class TextLineDataset(Dataset):
    """The lines of text files, in bytes, without their ends.

    Args:
        filenames: one path, several, or a Dataset of paths.
        num_parallel_reads: how many files are read in turn, a line of each; default: one after another.
    """

    def __init__(self, filenames: Filenames, num_parallel_reads: int | None = None) -> None:
        super().__init__(_rows(filenames, read_lines, num_parallel_reads))


def list_files(file_pattern: str | Sequence[str], shuffle: bool = True, seed: int | None = None) -> Dataset:
    """Return the paths that match patterns, shuffled or in order; raise an `InputError` if none does."""
    patterns = [file_pattern] if isinstance(file_pattern, str) else list(file_pattern)
    paths = sorted({path for pattern in patterns for path in glob(pattern)})  # noqa: PTH207 -- Path.glob takes no absolute pattern
    if not paths:
        raise InputError(f"list_files: no file matches {' or '.join(patterns)}.")
    dataset = Dataset.from_tensor_slices(paths)
    return dataset.shuffle(len(paths), seed=seed) if shuffle else dataset


def read_lines(path: str) -> Iterator[bytes]:
    """Yield a file's lines without line breaks; raise an `InputError` if it cannot be read so."""
    try:
        with open(open_regular(path), "rb") as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise InputError(f"{path}: found a line of more than {LINE_BYTES_MAX} bytes.")
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _rows(filenames: Filenames, read: Callable[[str], Iterator[bytes]], parallel_reads: int | None) -> Node:
    if isinstance(filenames, Dataset):
        names = filenames.node
    else:
        names = Slices(
            [str(filenames)] if isinstance(filenames, str | Path) else [str(name) for name in filenames]
        )
    return Interleaved(names, lambda name: FileRows(_text(name), read), max(1, parallel_reads or 1), 1)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
