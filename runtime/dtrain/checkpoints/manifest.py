"""A checkpoint's description of itself: the state of the run, and the keys of its arrays.

dense/kernel                        a whole variable
dense/kernel@0, dense/kernel@500    the same in two parts: the number is the first row
dense/kernel/.slots/momentum@0      rows of an optimizer's slot
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec.structs import asdict

from dtrain.checkpoints.tensor_file import FILE_NAME, TensorEntry
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, oversized, read_regular
from dtrain.state.fit_state import FitState
from dtrain.types import Arrays

Step: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
FORMAT = 1
MANIFEST = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """Size and CRC-32 of one data file."""

    nbytes: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Manifest(msgspec.Struct, frozen=True):
    """Everything about a checkpoint but its arrays.

    Attributes:
        final: training has reached its end; no later checkpoint will come.
        written_s: the time of writing, in seconds since the epoch.
        extra: other state of the run, as JSON; see `state`.
        format: the version of this form.
    """

    step: Step
    final: bool
    written_s: float
    files: Mapping[str, FileRecord]
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    format: int = FORMAT

    @property
    def state(self) -> FitState:
        """The state of the run besides its arrays; a `CheckpointError` if it is newer or damaged."""
        return FitState.of(self.extra)

    def encode(self) -> bytes:
        """Raise a `CheckpointError` if `extra` is not JSON."""
        try:
            return _allowed(_with_checksum({**asdict(self), "files": msgspec.to_builtins(self.files)}))
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"the extra state of the checkpoint of step {self.step} cannot be written as JSON: {error}"
            ) from None

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Read the bytes of the file.

        Raises:
            CheckpointError: a newer version of dtrain wrote it.
            CheckpointDamagedError: these are not the bytes that were written.
        """
        try:
            fields = json.loads(_allowed(data))
            if not _is_as_written(fields, data):
                raise ValueError("its checksum is wrong")
            del fields["crc32"]
            if type(fields["format"]) is int and fields["format"] > FORMAT:
                raise CheckpointError(
                    f"its format is {fields['format']:.6g}; this version of dtrain reads up to {FORMAT}"
                )
            if strange := [name for name in fields["files"] if not FILE_NAME.fullmatch(name)]:
                raise ValueError(f"{strange[0]!r} is no name of a data file")
            return msgspec.convert(fields, cls)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise CheckpointDamagedError(
                f"its {MANIFEST} is damaged: {type(error).__name__}: {str(error)[:300]}"
            ) from None


def read_manifest(path: Path) -> Manifest:
    """Return what a checkpoint says about itself; errors are those of `Manifest.decode`."""
    return Manifest.decode(read_regular(path / MANIFEST, JSON_BYTES_MAX))


def _allowed(data: bytes) -> bytes:
    """Return a text of a size that a reader takes; raise a `ValueError` for another size."""
    if why := oversized(data):
        raise ValueError(why)
    return data


def _is_as_written(fields: dict[str, Any], data: bytes) -> bool:
    """Return whether a file has the bytes of `_with_checksum`, in a tenth of its time."""
    checksum = fields["crc32"]
    rest = {name: value for name, value in fields.items() if name != "crc32"}
    if type(checksum) is not int or zlib.crc32(json.dumps(rest).encode()) != checksum:
        return False
    compact = json.dumps({"crc32": checksum, **rest}, separators=(",", ":")).encode()
    try:
        return msgspec.json.format(compact, indent=1) == data
    except msgspec.DecodeError:  # NaN and infinity, which Python writes and strict JSON does not have
        return json.dumps({"crc32": checksum, **rest}, indent=1).encode() == data


def _with_checksum(fields: dict[str, Any]) -> bytes:
    """Return the fields as text behind its checksum; the same bytes for fields that were read from it."""
    # tuples, enums and keys that are numbers become what they are in JSON
    plain = json.loads(json.dumps(fields))
    checksum = zlib.crc32(json.dumps(plain).encode())
    return json.dumps({"crc32": checksum, **plain}, indent=1).encode()


class OptimizerState(msgspec.Struct, frozen=True):
    """An optimizer's state: `slots` by slot name and variable, and `step`, the number of updates made."""

    step: int
    slots: Mapping[str, Arrays]


_SLOTS = "/.slots/"
_PART = re.compile(r"(?P<name>.+)@(?P<row>\d{1,18})", re.DOTALL)


def slot_key(variable: str, slot: str) -> str:
    return f"{variable}{_SLOTS}{slot}"


def split_slot_key(name: str) -> tuple[str, str]:
    variable, _, slot = name.partition(_SLOTS)
    return variable, slot


def part_key(name: str, row_start: int) -> str:
    """Return the key of the rows of an array from `row_start` on."""
    return f"{name}@{row_start}"


def is_slot(name: str) -> bool:
    return _SLOTS in name


class StoredArray(msgspec.Struct, frozen=True):
    """An array as it lies in a checkpoint: its parts, by rows. A scalar is one part."""

    dtype: str
    shape: tuple[int, ...]
    row_starts: tuple[int, ...]
    parts: tuple[TensorEntry, ...]


def join_parts(entries: Iterable[TensorEntry]) -> dict[str, StoredArray]:
    """Return the arrays that entries make up by name; raise a `CheckpointError` if parts do not fit."""
    by_name: dict[str, list[tuple[int, TensorEntry]]] = {}
    for entry in entries:
        match = _PART.fullmatch(entry.key)
        name, row_start = (match["name"], int(match["row"])) if match else (entry.key, 0)
        by_name.setdefault(name, []).append((row_start, entry))
    return {name: _join(name, sorted(parts, key=lambda part: part[0])) for name, parts in by_name.items()}


def _join(name: str, parts: list[tuple[int, TensorEntry]]) -> StoredArray:
    first = parts[0][1]
    rows = 0
    for row_start, entry in parts:
        if (entry.dtype, entry.shape[1:]) != (first.dtype, first.shape[1:]) or (
            len(parts) > 1 and not entry.shape
        ):
            raise CheckpointError(
                f"{entry.key}: expected rows like {first.dtype}{list(first.shape)} before it, "
                f"found {entry.dtype}{list(entry.shape)}"
            )
        if row_start != rows:
            raise CheckpointError(
                f"the rows of {name} are not stored once each: {entry.key} follows row {rows}"
            )
        rows += entry.shape[0] if entry.shape else 1
    shape = (rows, *first.shape[1:]) if first.shape else ()
    return StoredArray(
        first.dtype, shape, tuple(start for start, _ in parts), tuple(entry for _, entry in parts)
    )
