"""A file of arrays with a description: safetensors, with a checksum over the whole file in the metadata."""

import os
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from dtrain.checkpoints.tensor_file import (
    TensorEntry,
    array_bytes,
    decode_header,
    decode_metadata,
    encode_header,
    header_bytes,
)
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.formats.bounded_reading import open_regular
from dtrain.saving.destination import write_whole
from dtrain.types import Array, Arrays
from dtrain.variables.lazy_table import row_blocks

FORMAT = "dtrain"
VERSION = "1"
_BEGIN = b'{"__metadata__":{"format":"dtrain"'
_CHECKSUM = b'"crc32":"%08x"'
_FOREIGN = {
    b"\x89HDF": "an HDF5 file (Keras's .h5)",
    b"PK\x03\x04": "a zip archive (Keras's .keras, PyTorch's .pt)",
    b"\x93NUM": "a .npy file",
}


class Archive(msgspec.Struct, frozen=True):
    """The contents of a file: arrays in the order in which they were written, and JSON about them.

    In a file of another program the description is None.
    """

    path: Path
    arrays: dict[str, Array]
    description: str | None


def is_archive(path: Path) -> bool:
    """Judge by a file's first bytes whether `write_archive` has begun it."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(8 + len(_BEGIN))[8:] == _BEGIN
    except OSError:
        return False


def check_not_of_tensorflow(path: Path) -> None:
    """Raise a `CheckpointError` if TensorFlow wrote this path in several files."""
    kind = None
    if (path / "saved_model.pb").exists():
        kind = "a folder of TensorFlow (SavedModel)"
    elif path.with_name(f"{path.name}.index").exists() and not path.exists():
        kind = "a checkpoint of TensorFlow"
    elif path.is_dir() and any(path.glob("*.index")):
        kind = "a folder of checkpoints of TensorFlow"
    if kind is not None:
        raise CheckpointError(
            f"{path} cannot be used: it is {kind}; expected a file of dtrain's save or save_weights, a "
            "checkpoint or a run. "
            "Weights come over as arrays: model.set_weights(keras_model.get_weights())"
        )


def write_archive(path: Path, arrays: Arrays, description: str, *, overwrite: bool = True) -> None:
    """Raise a `CheckpointError` on a full disk, or for a dtype without a form."""
    entries = [TensorEntry(key, array.dtype.name, array.shape) for key, array in arrays.items()]
    metadata = {"format": FORMAT, "version": VERSION, "description": description, "crc32": f"{0:08x}"}
    header = encode_header(entries, metadata)
    crc32 = 0

    def blocks() -> Iterator[bytes | memoryview]:
        nonlocal crc32
        content: Iterator[bytes | memoryview] = chain([header], *map(_blocks, arrays.values()))
        for block in content:
            crc32 = zlib.crc32(block, crc32)
            yield block

    # Quotes within strings are escaped in JSON, so this text is found once.
    place = header.index(_CHECKSUM % 0)
    write_whole(path, blocks(), overwrite=overwrite, correction=lambda: (place, _CHECKSUM % crc32))


def _blocks(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array; of a table that lies elsewhere never all rows at once."""
    if isinstance(array, np.ndarray):
        yield array_bytes(array)
    else:
        for start, stop in row_blocks(array.shape, array.dtype.itemsize):
            yield array_bytes(array[start:stop])


def read_archive(path: Path) -> Archive:
    """Read a file in the safetensors format.

    Raises:
        CheckpointError: there is none, it is of another kind, or a newer version of dtrain wrote it.
        CheckpointDamagedError: its bytes are not those that were written.
    """
    try:
        with open(open_regular(path), "rb") as file:
            return _read(path, file)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise CheckpointError(
            f"{path} cannot be read: there is no memory for its {path.stat().st_size} bytes"
        ) from None
    except CheckpointDamagedError as error:
        raise CheckpointDamagedError(f"{path} cannot be used: {error}") from None


def _read(path: Path, file: BinaryIO) -> Archive:
    nbytes = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if start[:4] in _FOREIGN:
        raise CheckpointError(
            f"{path} cannot be used: it is {_FOREIGN[start[:4]]}; expected a file of dtrain, or safetensors"
        )
    text = start + file.read(header_bytes(start, nbytes) - len(start))
    entries = decode_header(text, path.name, nbytes)
    metadata = decode_metadata(text)
    try:
        arrays = {entry.key: _filled(np.empty(entry.shape, entry.dtype), file) for entry in entries}
    except ValueError as error:  # more axes, or with a length of 0 larger others, than numpy has
        raise CheckpointDamagedError(f"its header declares an impossible shape: {error}") from None
    if metadata.get("format") != FORMAT and "crc32" not in metadata:
        return Archive(path, arrays, None)
    said = _CHECKSUM[:9] + metadata.get("crc32", "").encode() + b'"'
    crc32 = zlib.crc32(text.replace(said, _CHECKSUM % 0))
    for array in arrays.values():
        crc32 = zlib.crc32(array_bytes(array), crc32)
    found = _CHECKSUM % crc32
    if said != found:
        raise CheckpointDamagedError("its bytes are not those that were written: the checksum is wrong")
    if metadata.get("version") != VERSION:
        raise CheckpointError(
            f"{path} was written by a newer dtrain: format {metadata.get('version', 'none')[:40]}, this one "
            f"reads {VERSION}"
        )
    return Archive(path, arrays, metadata.get("description"))


def _filled(array: Array, file: BinaryIO) -> Array:
    target = array.reshape(-1).view(np.uint8).data
    if file.readinto(target) != len(target):  # type: ignore[attr-defined]
        raise CheckpointDamagedError("it was cut short while it was being read")
    return array
