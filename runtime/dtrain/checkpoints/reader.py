"""Reading of checkpoints, whole variables or any rows, once sizes, headers and checksums are verified."""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain.checkpoints.folder import open_for_reading, readable, step_of
from dtrain.checkpoints.manifest import MANIFEST, FileRecord, Manifest, StoredArray, is_slot, join_parts
from dtrain.checkpoints.tensor_file import TensorEntry, decode_header, header_bytes
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, open_regular, read_whole
from dtrain.types import Array
from dtrain.variables.sharded_variable import ShardedVariable

BLOCK_BYTES = 1 << 20


class OpenCheckpoint:
    """An open, verified checkpoint. It cannot be removed while it is open; close it, or use it in a `with`.

    Attributes:
        state: of the run, beside the arrays.
        warning: names newer ones that are damaged; None if there are none.
    """

    def __init__(self, path: Path) -> None:
        """Open and verify.

        Raises:
            FileNotFoundError: it is not there, or was just removed.
            CheckpointError: a newer version of dtrain wrote it.
            CheckpointDamagedError: sizes, checksums or headers are wrong, or rows are missing.
        """
        self.path = path
        self.warning: str | None = None
        self._descriptors: dict[str, int] = {}
        self._lock = -1
        try:
            self._lock = open_for_reading(path)
            self.manifest = Manifest.decode(read_whole(self._lock, JSON_BYTES_MAX, path / MANIFEST))
            self.state = self.manifest.state
            if step_of(path) not in (None, self.step):
                raise CheckpointDamagedError(
                    f"its name says step {step_of(path)}, its {MANIFEST} says step {self.step}"
                )
            for name in self.manifest.files:
                self._descriptors[name] = open_regular(path / name, follow=False)
            self.arrays = join_parts(
                entry
                for name, record in self.manifest.files.items()
                for entry in _verified(name, self._descriptors[name], record)
            )
        except OSError as error:
            self.close()
            if not (path / MANIFEST).exists():
                raise FileNotFoundError(f"{path} has no {MANIFEST}, or was just removed") from None
            raise CheckpointDamagedError(
                f"{path} cannot be used: {error.strerror}: {error.filename}"
            ) from None
        except CheckpointError as error:
            self.close()
            kind = type(error) if isinstance(error, CheckpointDamagedError) else CheckpointError
            raise kind(f"{path} cannot be used: {error}") from None

    def __enter__(self) -> "OpenCheckpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def variables(self) -> Mapping[str, StoredArray]:
        return {name: stored for name, stored in self.arrays.items() if not is_slot(name)}

    def read(self, name: str) -> Array:
        """Return a whole variable, or a slot under its `slot_key`; a `CheckpointError` if it is not there."""
        stored = self._stored(name)
        return self.read_rows(name, 0, stored.shape[0] if stored.shape else 1)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a variable or slot, and read nothing else. A scalar is one row.

        A `CheckpointError` says that the checkpoint has no such array or rows.
        """
        stored = self._stored(name)
        rows = stored.shape[0] if stored.shape else 1
        if not 0 <= start <= stop <= rows:
            raise CheckpointError(f"{self.path} has rows 0 to {rows} of {name}; asked for {start} to {stop}")
        result = np.empty((stop - start, *stored.shape[1:]) if stored.shape else (), stored.dtype)
        target = result.reshape(-1).view(np.uint8).data
        row_bytes = len(target) // (stop - start) if stop > start else 0
        for first, entry in zip(stored.row_starts, stored.parts, strict=True):
            begin = max(start, first)
            end = min(stop, first + (entry.shape[0] if entry.shape else 1))
            if begin < end:
                part = target[(begin - start) * row_bytes : (end - start) * row_bytes]
                self._read_into(part, entry.file, entry.offset + (begin - first) * row_bytes)
        return result

    def look_into(self, name: str) -> ShardedVariable:
        """Return a variable or slot that is read where it is used: views of the file, valid after closing."""
        stored = self._stored(name)
        return ShardedVariable([self._mapped(entry) for entry in stored.parts])

    def _mapped(self, entry: TensorEntry) -> Array:
        """Return a view of the file that was verified, which another may have replaced under its name."""
        with open(os.dup(self._descriptors[entry.file]), "rb") as file:
            return np.memmap(file, entry.dtype, "r", entry.offset, entry.shape)

    def _stored(self, name: str) -> StoredArray:
        if name not in self.arrays:
            known = ", ".join(self.arrays)
            raise CheckpointError(f"{self.path} holds no {name[:200]!r}; it holds {known[:400] or 'nothing'}")
        return self.arrays[name]

    def _read_into(self, target: memoryview, file: str, offset: int) -> None:
        while target:
            count = os.preadv(self._descriptors[file], [target[: 1 << 30]], offset)
            if count == 0:
                raise CheckpointDamagedError(f"{self.path / file} was cut short while it was being read")
            target = target[count:]
            offset = offset + count


def _verified(name: str, descriptor: int, record: FileRecord) -> list[TensorEntry]:
    """Return the entries of a data file, once its size, checksum and header agree with the manifest."""
    nbytes = os.fstat(descriptor).st_size
    if nbytes != record.nbytes:
        raise CheckpointDamagedError(f"{name} has {nbytes} bytes, its {MANIFEST} says {record.nbytes}")
    crc32 = 0
    position = 0
    while block := os.pread(descriptor, BLOCK_BYTES, position):
        crc32 = zlib.crc32(block, crc32)
        position = position + len(block)
    if crc32 != record.crc32:
        raise CheckpointDamagedError(
            f"the bytes of {name} are not those that were written: its checksum is wrong"
        )
    length = header_bytes(os.pread(descriptor, 8, 0), nbytes)
    return decode_header(os.pread(descriptor, length, 0), name, nbytes)


def open_checkpoint(path: Path) -> OpenCheckpoint:
    """Open one checkpoint, or the newest sound one of a directory of them; see `OpenCheckpoint.warning`.

    Raises:
        CheckpointError: there is none, or a newer version of dtrain wrote it.
        CheckpointDamagedError: there are some, and all are damaged.
    """
    if (path / MANIFEST).exists():
        return OpenCheckpoint(path)
    damaged: list[str] = []
    for found in readable(path):
        try:
            checkpoint = OpenCheckpoint(found.path)
        except CheckpointDamagedError as error:
            damaged.append(str(error))
            continue
        except FileNotFoundError:
            if found.path.exists():
                damaged.append(f"{found.path} has no {MANIFEST}")
            continue
        if damaged:
            checkpoint.warning = f"{'; '.join(damaged)}. Using {checkpoint.path} instead"
        return checkpoint
    if damaged:
        raise CheckpointDamagedError(f"no checkpoint in {path} is sound: {'; '.join(damaged)}")
    raise CheckpointError(f"there is no checkpoint in {path}")


class EvaluatedCheckpoint(msgspec.Struct, frozen=True):
    """The weights of one checkpoint; the reader owns the arrays. After a `final` one none is written.

    Attributes:
        updates: those that the optimizer has made.
    """

    global_step: int
    weights: Mapping[str, np.ndarray[Any, Any]]
    final: bool
    updates: int = 0


class Pace(msgspec.Struct, frozen=True):
    """The times between evaluations of checkpoints while training goes on.

    Attributes:
        start_delay_s: from the evaluator's start to its first evaluation.
        throttle_s: from the beginning of one evaluation to the next.
    """

    start_delay_s: float = 0.0
    throttle_s: float = 0.0
