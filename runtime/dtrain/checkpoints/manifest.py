"""A checkpoint's description of itself, written last: where it is, the arrays are."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dtrain.checkpoints.run_state import RunState
from dtrain.checkpoints.tensor_file import FILE_NAME
from dtrain.errors import CheckpointDamagedError, CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """Size and CRC-32 of one data file."""

    nbytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """Everything about a checkpoint but its arrays.

    Attributes:
        step: the global step.
        final: training has reached its end; no later checkpoint will come.
        written_s: the time of writing, in seconds since the epoch.
        files: the data files, by name.
        extra: other state of the run, as JSON; see `state`.
        format: the version of this form.
    """

    step: int
    final: bool
    written_s: float
    files: Mapping[str, FileRecord]
    extra: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def state(self) -> RunState:
        """The state of the run besides its arrays.

        Raises:
            CheckpointError: a newer version of dtrain wrote it.
            CheckpointDamagedError: it does not have that form.
        """
        return RunState.of(self.extra)

    def encode(self) -> bytes:
        """Return the bytes of the file, with their own checksum.

        Raises:
            CheckpointError: `extra` is not JSON.
        """
        try:
            return _with_checksum(asdict(self))
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"the extra state of the checkpoint of step {self.step} is not JSON: {error}"
            ) from None

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Read the bytes of the file.

        Raises:
            CheckpointError: a newer version of dtrain wrote it.
            CheckpointDamagedError: these are not the bytes that were written.
        """
        try:
            fields = json.loads(data)
            del fields["crc32"]
            if _with_checksum(fields) != data:
                raise ValueError("its checksum is wrong")
            if fields["format"] > FORMAT:
                raise CheckpointError(
                    f"its format is {fields['format']}; this version of dtrain reads up to {FORMAT}"
                )
            files = {_checked(name): FileRecord(**record) for name, record in fields.pop("files").items()}
            if type(fields["step"]) is not int or type(fields["extra"]) is not dict:
                raise ValueError("expected a whole number as step and an object as extra")
            return cls(files=files, **fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointDamagedError(
                f"its {MANIFEST} is damaged: {type(error).__name__}: {error}"
            ) from None


def read_manifest(path: Path) -> Manifest:
    """Return what a checkpoint says about itself; its data are not looked at.

    Raises:
        OSError: it is not there.
        CheckpointError: a newer version of dtrain wrote it, or it is damaged.
    """
    return Manifest.decode((path / MANIFEST).read_bytes())


def _with_checksum(fields: dict[str, Any]) -> bytes:
    """Return the fields as text behind its checksum; the same bytes for fields that were read from it."""
    # tuples, enums and keys that are numbers become what they are in JSON
    plain = json.loads(json.dumps(fields))
    checksum = zlib.crc32(json.dumps(plain).encode())
    return json.dumps({"crc32": checksum, **plain}, indent=1).encode()


def _checked(name: str) -> str:
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a data file")
    return name
