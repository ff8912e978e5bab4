"""Files of examples as columns: .npz, .npy, .csv and .tfrecord, and the choice of inputs and targets.

A column is an array with one row an example. Nothing in a file is unpickled.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.examples import decode_example
from dtrain.data.readers.rows import TfRecords
from dtrain.data.stores.opening import open_stream
from dtrain.data.user_data import check_lengths
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import check_growth
from dtrain.formats.numpy_file import read_arrays
from dtrain.process.plain_text import listed
from dtrain.types import Array, Shape

CSV_BYTES_MAX = 256 << 20
"""Bytes: text takes up to 30 times its size while it is read, an .npz none."""
SUFFIXES = (".npz", ".npy", ".csv", ".tfrecord", ".tfrecords")
X_NAMES = ("x", "x_test")
Y_NAMES = ("y", "y_test")


def read_examples(
    path: Path,
    inputs: Mapping[str, Shape],
    x: str | None = None,
    y: str | None = None,
    *,
    targets: bool,
    outputs: Sequence[str] = (),
) -> Any:
    """Return what `evaluate` (``(x, y)``) or `predict` (``x``) takes; the suffix names the format.

    Columns with the names of all the model's inputs, or outputs if it has several, are these. Flat examples,
    and those that differ by axes of length 1, are taken in the shapes of the inputs.

    Args:
        inputs: shapes of the model's inputs by name.
        x: the column of inputs; else ``x``, ``x_test`` or the only one. In a .csv all columns but the
            targets', as floats.
        y: the column of targets; else ``y`` or ``y_test``, in a .csv the last.
        targets: whether they are wanted.
        outputs: names of the model's outputs.
    """
    columns = _columns(path)
    if not columns:
        raise InputError(f"{path}: expected examples, found none")
    by_output = (
        path.suffix != ".csv"
        and targets
        and y is None
        and len(outputs) > 1
        and all(name in columns for name in outputs)
    )
    if path.suffix == ".csv":
        given, target = _of_csv(path, columns, inputs, x, y, targets=targets)
    else:
        target = _chosen(path, columns, "y", y, Y_NAMES) if targets and not by_output else None
        by_input = x is None and all(name in columns for name in inputs)
        only = tuple(columns) if len(columns) == 1 else ()
        given = (
            {name: columns[name] for name in inputs}
            if by_input
            else columns[_chosen(path, columns, "x", x, X_NAMES + only)]
        )
    if isinstance(given, dict):
        given = {name: _shaped(column, inputs[name]) for name, column in given.items()}
    elif len(inputs) == 1:
        given = _shaped(given, next(iter(inputs.values())))
    wanted = {name: columns[name] for name in outputs} if by_output else columns.get(target or "")
    check_lengths((given,) if wanted is None else (given, wanted), str(path))
    return given if wanted is None else (given, wanted)


def _shaped(column: Array, shape: Shape) -> Array:
    found = column.shape[1:]
    known = tuple(length for length in shape if length is not None)
    doubtless = len(found) == 1 or [n for n in found if n != 1] == [n for n in known if n != 1]
    return (
        column.reshape(len(column), *known)
        if len(known) == len(shape) and prod(found) == prod(known) and doubtless
        else column
    )


def _of_csv(
    path: Path,
    columns: Mapping[str, Array],
    inputs: Mapping[str, Shape],
    x: str | None,
    y: str | None,
    *,
    targets: bool,
) -> tuple[Any, str | None]:
    target = _chosen(path, columns, "y", y, (list(columns)[-1],)) if targets or y is not None else None
    names = (
        [name for name in columns if name != target] if x is None else [_chosen(path, columns, "x", x, ())]
    )
    if not names:
        raise InputError(
            f"{path}: expected columns of inputs beside the target {listed([*columns])}, found none"
        )
    if x is None and len(inputs) > 1 and set(inputs) <= set(names):
        return {name: columns[name] for name in inputs}, target
    kinds = {columns[name].dtype.kind for name in names}
    if len(kinds) > 1:
        name = next(name for name in names if columns[name].dtype.kind != "f")
        found = next(cell for cell in columns[name] if not _is_number(cell))
        raise InputError(f"{path}: column {name}: expected numbers as in other columns, found {str(found)!r}")
    return np.stack([columns[name] for name in names], axis=1), target if targets else None


def _chosen(
    path: Path, columns: Mapping[str, Array], what: str, wanted: str | None, usual: Sequence[str]
) -> str:
    for name in usual if wanted is None else (wanted,):
        if name in columns:
            return name
    expected = wanted or " or ".join(usual)
    raise InputError(
        f"{path}: expected a column {expected}; it has {listed([*columns], 20)}: say which one is {what} "
        f"with --{what} NAME"
    )


def _columns(path: Path) -> dict[str, Array]:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix == ".csv":
        return _csv_columns(path)
    if path.suffix in (".tfrecord", ".tfrecords"):
        return _record_columns(path)
    with open_stream(str(path)) as file:
        return {name or "x": array for name, array in read_arrays(file, str(path)).items()}


def _csv_columns(path: Path) -> dict[str, Array]:
    """Return columns by the names in a first line that is not all numbers; else by 0, 1, ..."""
    try:
        with open_stream(str(path)) as file:
            if (nbytes := file.seek(0, os.SEEK_END)) > CSV_BYTES_MAX:
                raise InputError(f"{path}: found {nbytes} bytes, expected at most {CSV_BYTES_MAX} in a .csv")
            file.seek(0)
            rows = [row for row in csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline="")) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected comma-separated text: {error}") from None
    if not rows:
        return {}
    named = any(not _is_number(cell) for cell in rows[0])
    names = [cell.strip() for cell in rows[0]] if named else [str(number) for number in range(len(rows[0]))]
    body = rows[named:]
    for number, row in enumerate(body, start=1 + named):
        if len(row) != len(names):
            raise InputError(f"{path}: row {number}: expected {len(names)} cells, found {len(row)}")
    if len(set(names)) != len(names):
        raise InputError(f"{path}: the first line names a column twice")
    return {name: _cells(path, [row[at] for row in body]) for at, name in enumerate(names)} if body else {}


def _cells(path: Path, cells: Sequence[str]) -> Array:
    return (
        np.array([float(cell) for cell in cells], np.float32)
        if all(map(_is_number, cells))
        else _array(path, cells, cells)
    )


def _array(path: Path, rows: Sequence[Any], texts: Sequence[Any]) -> Array:
    """Return rows as an array, in which each of their texts takes as much memory as the longest."""
    check_growth(4 * max(map(len, texts), default=0) * len(texts), path.stat().st_size, f"{path}")
    return np.array(rows)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _record_columns(path: Path) -> dict[str, Array]:
    rows = [decode_example(record) for record in TfRecords().read(str(path))]
    columns = {}
    for name in rows[0] if rows else ():
        values = [row.get(name) for row in rows]
        lengths = {0 if value is None else len(value) for value in values}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(
                f"{path}: feature {name[:80]}: expected as many values in every example, found "
                f"{sorted(lengths)}"
            )
        texts = [each for value in values if isinstance(value, list) for each in value]
        array = _array(path, values, texts)
        columns[name] = array[:, 0] if array.shape[1] == 1 else array
    return columns
