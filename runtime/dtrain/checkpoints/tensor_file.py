"""A file of arrays in the safetensors format: 8 bytes of length, a JSON header, then the arrays in C order.

The library is not used: it wants all arrays in memory at once, and its version 0.8.0 writes wrong bytes for
arrays that are not C-contiguous. Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, oversized
from dtrain.variables import DTYPE_BYTES

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.safetensors")
METADATA = "__metadata__"
NAME_MAX = 4096
"""Characters in the name of an array: as in a path."""
_LENGTH_BYTES = 8
_CODES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class TensorEntry(msgspec.Struct, frozen=True):
    """One array of a file; `file` and `offset`, its first byte there, are set when it is read."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def encode_header(entries: Sequence[TensorEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file's beginning for arrays in the order of `entries`; a `CheckpointError` if it has none."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for entry in entries:
        if entry.dtype not in _CODES:
            raise CheckpointError(
                f"{entry.key} has dtype {entry.dtype}; a checkpoint holds {', '.join(_CODES)}"
            )
        if entry.key in header or entry.key == METADATA:
            raise CheckpointError(f"a checkpoint cannot hold two arrays called {entry.key!r}")
        if len(entry.key) > NAME_MAX:
            raise CheckpointError(f"{entry.key[:80]}...: a name has at most {NAME_MAX} characters")
        end = offset + entry.nbytes
        header[entry.key] = {
            "dtype": _CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    if why := oversized(text):
        raise CheckpointError(f"the header of {len(entries)} arrays would be too large: {why}")
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def header_bytes(start: bytes, file_bytes: int) -> int:
    """Return the length of header and length field, from 8 bytes; a `CheckpointDamagedError` if too long."""
    length = int.from_bytes(start, "little")
    if len(start) != _LENGTH_BYTES or length > min(JSON_BYTES_MAX, file_bytes - _LENGTH_BYTES):
        raise CheckpointDamagedError(
            f"it is not a model file, or damaged: it begins like {start!r}, which is not the length of a "
            f"header of at most {min(JSON_BYTES_MAX, file_bytes)} bytes"
        )
    return _LENGTH_BYTES + length


def decode_header(text: bytes, file: str, file_bytes: int) -> list[TensorEntry]:
    """Return the arrays of a file in the order of their bytes, from its length field and header.

    A header that does not describe the rest of the file, byte for byte, is a `CheckpointDamagedError`.
    """
    try:
        if why := oversized(text):
            raise ValueError(why)
        header = json.loads(text[_LENGTH_BYTES:], object_pairs_hook=_unique_keys)
        described = [(*_offsets(fields), key, fields) for key, fields in header.items() if key != METADATA]
        described.sort(key=lambda item: item[:2])
        entries = []
        position = 0
        for begin, end, key, fields in described:
            entry = TensorEntry(
                _checked(key), _DTYPES[fields["dtype"]], _shape(fields), file, len(text) + begin
            )
            if begin != position or end - begin != entry.nbytes:
                raise ValueError(
                    f"{key[:100]!r} lies at bytes {begin} to {end}, expected {entry.nbytes} from {position}"
                )
            position = end
            entries.append(entry)
        if len(text) + position != file_bytes:
            raise ValueError(f"it describes {len(text) + position} bytes, the file has {file_bytes}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointDamagedError(
            f"its header is not one of arrays: {type(error).__name__}: {str(error)[:300]}"
        ) from None
    return entries


def decode_metadata(text: bytes) -> dict[str, str]:
    """Return a file's metadata from a decoded beginning; a `CheckpointDamagedError` if they are no texts."""
    metadata = json.loads(text[_LENGTH_BYTES:]).get(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointDamagedError("the metadata in its header are not text by name")
    try:
        "".join(metadata.values()).encode()
    except UnicodeEncodeError:
        raise CheckpointDamagedError("the metadata in its header are not text: half a character") from None
    return metadata


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array of any layout as in a file: little-endian, in C order."""
    ordered = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return ordered.reshape(-1).view(np.uint8).data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("it has a key twice")
    return result


def _checked(name: str) -> str:
    name.encode()  # half a character, such as "\\ud800", is a ValueError
    if len(name) > NAME_MAX:
        raise ValueError(
            f"{name[:80]!r}... has {len(name)} characters, expected a name of at most {NAME_MAX}"
        )
    return name


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"expected whole numbers of at least 0, found {values!r:.80}")
    return tuple(values)


def _shape(fields: dict[str, Any]) -> tuple[int, ...]:
    return _numbers(fields["shape"])


def _offsets(fields: dict[str, Any]) -> tuple[int, int]:
    begin, end = _numbers(fields["data_offsets"])
    return begin, end
