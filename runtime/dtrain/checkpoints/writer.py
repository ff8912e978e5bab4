"""Writing of a checkpoint, streamed block by block: afterwards it is there as a whole or not at all.

with CheckpointWriter(directory, step, now=now) as writer:
    with writer.data_file("server-0.safetensors", entries) as file:
        for block in blocks:
            file.write(block)
    writer.commit(extra)
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import disk_usage
from typing import Any, BinaryIO

import msgspec
import numpy as np

from dtrain.checkpoints.folder import (
    DISK,
    REMOVED,
    REPLACED,
    WRITTEN,
    FileOperations,
    checkpoint_path,
    free_name,
    list_checkpoints,
    set_aside,
    sweep,
)
from dtrain.checkpoints.manifest import MANIFEST, FileRecord, Manifest, join_parts
from dtrain.checkpoints.tensor_file import FILE_NAME, TensorEntry, array_bytes, encode_header
from dtrain.errors import CheckpointError
from dtrain.types import Array

BLOCK_BYTES = 1 << 20


class ArraysFile:
    """A file of arrays while it is being written: its entries' bytes, in order, in blocks of any size."""

    def __init__(self, file: BinaryIO, expected_bytes: int, disk: FileOperations) -> None:
        self._file = file
        self._disk = disk
        self._expected_bytes = expected_bytes
        self._nbytes = 0
        self._crc32 = 0

    def write(self, block: Array | bytes | memoryview) -> None:
        """Append a block, little-endian in C order."""
        data = array_bytes(block) if isinstance(block, np.ndarray) else memoryview(block).cast("B")
        for start in range(0, len(data), BLOCK_BYTES):
            part = data[start : start + BLOCK_BYTES]
            self._crc32 = zlib.crc32(part, self._crc32)
            self._disk.write(self._file, part)
            self._nbytes += len(part)

    def finish(self) -> FileRecord:
        """Sync the file; raise a `CheckpointError` if other than its entries' bytes were written."""
        if self._nbytes != self._expected_bytes:
            raise CheckpointError(
                f"{self._file.name} got {self._nbytes} bytes; its arrays have {self._expected_bytes}"
            )
        self._disk.sync(self._file)
        return FileRecord(self._nbytes, self._crc32)


class Streamed(msgspec.Struct, frozen=True):
    """An array as blocks, which together are its bytes in C order; they are made when they are written."""

    dtype: str
    shape: tuple[int, ...]
    blocks: Iterable[Array]


class CheckpointWriter:
    """A checkpoint of one step while it is being written. Leaving without `commit` leaves nothing behind."""

    def __init__(self, directory: Path, step: int, *, now: float, disk: FileOperations = DISK) -> None:
        """Prepare; `now` is in seconds since the epoch."""
        self._directory = directory
        self._step = step
        self._now = now
        self._disk = disk
        self._files: dict[str, FileRecord] = {}
        self._entries: list[TensorEntry] = []
        self._expected_bytes = 0
        self._path: Path | None = None

    def __enter__(self) -> "CheckpointWriter":
        with self._explained("write"):
            # a process that was killed may have made it without syncing its name
            if not list_checkpoints(self._directory):
                self._disk.make_directory(self._directory)
                self._disk.sync_directory(self._directory.parent)
                with suppress(PermissionError):  # a folder of others, nothing in it was made for this run
                    # the run directory has just been made in it
                    self._disk.sync_directory(self._directory.parent.parent)
            sweep(self._directory, self._disk)
            path = free_name(self._directory, WRITTEN, self._step)
            self._disk.make_directory(path)
            self._path = path
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._path is not None:
            try:
                self._disk.remove(self._path)
            except OSError:
                # What stays behind is swept up by the next write; the error that led here is the one to
                # report.
                if error is None:
                    raise

    @contextmanager
    def data_file(self, name: str, entries: Sequence[TensorEntry]) -> Iterator[ArraysFile]:
        """Open one data file; the bytes of `entries` are to be written within the block, in their order.

        A `CheckpointError` says that the name or entries are wrong, the bytes do not fit, or the disk fails.
        """
        if not FILE_NAME.fullmatch(name):
            raise CheckpointError(
                f"{name!r} is no name of a data file; expected letters, digits and ._- ending in .safetensors"
            )
        header = encode_header(entries)
        expected_bytes = len(header) + sum(entry.nbytes for entry in entries)
        self._expected_bytes += expected_bytes
        with self._explained("write"), self._disk.create(self._written / name) as file:
            data_file = ArraysFile(file, expected_bytes, self._disk)
            data_file.write(header)
            yield data_file
            self._files[name] = data_file.finish()
        self._entries += entries

    def commit(self, extra: Mapping[str, Any] | None = None, *, final: bool = False) -> Path:
        """Make it a checkpoint; once this returns, no crash can undo it.

        Raises:
            CheckpointError: rows of a variable are missing, `extra` is not JSON, or the disk is full or
                failing.
        """
        join_parts(self._entries)
        manifest = Manifest(self._step, final, self._now, self._files, dict(extra or {}))
        target = checkpoint_path(self._directory, self._step)
        with self._explained("write"):
            with self._disk.create(self._written / MANIFEST) as file:
                self._disk.write(file, memoryview(manifest.encode()))
                self._disk.sync(file)
            self._disk.sync_directory(self._written)
            others = list_checkpoints(self._directory)
            for other in others:
                if other.step == self._step:
                    set_aside(other, REPLACED, self._disk)
            self._disk.rename(self._written, target)
            self._path = None
            self._disk.sync_directory(self._directory)
        with self._explained("clear away what comes after"):
            # Training has gone back before later steps: what was written now must be the newest. The disk may
            # keep the moves of one directory in any order, and until the last one of them the newest of the
            # later steps is the one that counts.
            for other in others:
                if other.step > self._step:
                    set_aside(other, REMOVED, self._disk)
                    self._disk.sync_directory(self._directory)
            sweep(self._directory, self._disk)
        return target

    @property
    def _written(self) -> Path:
        assert self._path is not None, "a checkpoint is written between `with` and `commit`"
        return self._path

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot {doing} the checkpoint of step {self._step} in {self._directory}: "
                f"{error.strerror or error} "
                f"(it has {self._expected_bytes:,} bytes, {_free(self._directory)}); earlier checkpoints "
                "are untouched"
            ) from error


def _free(directory: Path) -> str:
    try:
        return f"{disk_usage(directory).free:,} free"
    except OSError:
        return "free space unknown"


def save(
    directory: Path,
    step: int,
    arrays: Mapping[str, Array | Streamed],
    extra: Mapping[str, Any] | None = None,
    *,
    final: bool = False,
    now: float,
    disk: FileOperations = DISK,
) -> Path:
    """Write a checkpoint of arrays or blocks; see `part_key` and `slot_key` for keys."""
    streams = {}
    for key, each in arrays.items():
        streams[key] = each if isinstance(each, Streamed) else Streamed(each.dtype.name, each.shape, [each])
    entries = [TensorEntry(key, stream.dtype, stream.shape) for key, stream in streams.items()]
    with CheckpointWriter(directory, step, now=now, disk=disk) as writer:
        with writer.data_file("arrays.safetensors", entries) as file:
            for stream in streams.values():
                for block in stream.blocks:
                    file.write(block)
        return writer.commit(extra, final=final)
