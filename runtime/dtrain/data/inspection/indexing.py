"""The indexes of files, built as a run would build them."""

import time
import warnings
from enum import StrEnum
from pathlib import Path

import msgspec

from dtrain.data.inspection.file_kinds import DataFile, batches_of
from dtrain.data.record_index.addressing import addressed
from dtrain.data.record_index.index_files import (
    INDEXED_BYTES_MIN,
    RecordIndex,
    index_of,
    kept_index,
    places_of,
)
from dtrain.data.stores.opening import open_file
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError


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
