"""Predictions as JSON, and in the format that a file's name asks for."""

import json
import math
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.types import Arrays

SUFFIXES = (".npy", ".npz", ".csv", ".json", ".jsonl")


def rows(outputs: Arrays) -> Iterator[Any]:
    """Yield each example's outputs as JSON: nested lists, or an object by name if there are several."""
    for row in zip(*outputs.values(), strict=True):
        values = [plain(each.tolist()) for each in row]
        yield values[0] if len(outputs) == 1 else dict(zip(outputs, values, strict=True))


def encoded(path: Path, outputs: Arrays) -> list[bytes]:
    """Return the bytes of a file; raise a `SpecError` if the format of its name does not fit."""
    if path.suffix not in SUFFIXES:
        raise SpecError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if path.suffix in (".npy", ".csv") and len(outputs) > 1:
        raise SpecError(
            f"{path}: holds one output, found {', '.join(outputs)}; expected a name that ends in .npz or "
            ".jsonl"
        )
    if path.suffix == ".jsonl":
        return [line(row) for row in rows(outputs)]
    if path.suffix == ".json":
        return [line(list(rows(outputs)))]
    file = BytesIO()
    if path.suffix == ".npz":
        arrays: dict[str, Any] = dict(outputs)
        np.savez(file, **arrays)
    else:
        [output] = outputs.values()
        if path.suffix == ".npy":
            np.save(file, output, allow_pickle=False)
        for row in output.reshape(len(output), -1).tolist() if path.suffix == ".csv" else ():
            file.write((",".join(map(str, row)) + "\n").encode())
    return [file.getvalue()]


def line(value: Any) -> bytes:
    return (json.dumps(value) + "\n").encode()


def plain(value: Any) -> Any:
    """Return a value as JSON types: bytes as text, null for numbers that are not finite."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value
