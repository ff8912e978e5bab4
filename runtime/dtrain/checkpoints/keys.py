"""The keys of arrays in a checkpoint, and the joining of rows that are stored apart.

dense/kernel                        a whole variable
dense/kernel@0, dense/kernel@500    the same in two parts: the number is the first row
dense/kernel/.slots/momentum@0      rows of an optimizer's slot
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dtrain.checkpoints.tensor_file import TensorEntry
from dtrain.errors import CheckpointError

_SLOTS = "/.slots/"
_PART = re.compile(r"(?P<name>.+)@(?P<row>\d{1,18})", re.DOTALL)


def slot_key(variable: str, slot: str) -> str:
    """Return the name of an optimizer's slot of one variable."""
    return f"{variable}{_SLOTS}{slot}"


def split_slot_key(name: str) -> tuple[str, str]:
    """Return the variable and the slot of a `slot_key`."""
    variable, _, slot = name.partition(_SLOTS)
    return variable, slot


def part_key(name: str, row_start: int) -> str:
    """Return the key of an array, or of some of its rows from `row_start` on."""
    return f"{name}@{row_start}"


def is_slot(name: str) -> bool:
    """Return whether a name is a slot's."""
    return _SLOTS in name


@dataclass(frozen=True)
class StoredArray:
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
