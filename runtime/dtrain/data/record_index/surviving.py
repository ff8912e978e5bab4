"""The positions that a filter leaves over: computed once, and kept in the run directory.

They are kept under the fingerprint of the pipeline and the predicate. A filter without one is computed by
every task.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.grouping import call
from dtrain.data.node import Node
from dtrain.data.record_index.building import FOLDER, WAIT_S
from dtrain.data.record_index.fingerprint import NoFingerprintError, fingerprint
from dtrain.data.record_index.offsets import SUFFIX, Offsets, read_index, remove_remnants, write_index
from dtrain.data.stores.local import FileFacts
from dtrain.process.assignment import RUN_DIR
from dtrain.process.file_lock import locked

ROWS_PER_S = 1000
"""The speed that is expected of a task that computes the positions."""
CHECKED = 32
"""Positions at which kept ones are compared with what the predicate says."""
BLOCK_ROWS = 1024


def surviving(source: Node, predicate: Callable[..., Any]) -> Offsets:
    """Return the positions in an addressable source of the elements for which a predicate holds.

    Raises:
        WaitTimeoutError: another task takes too long to compute them.
    """
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        return _computed(source, predicate)
    try:
        digest = fingerprint(source, predicate)
    except NoFingerprintError:
        return _computed(source, predicate)
    folder = Path(run_dir) / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return _computed(source, predicate)
    try:
        work = "find the elements that a filter leaves over"
        with locked(descriptor, WAIT_S + source.cardinality / ROWS_PER_S, work) as alone:
            path = folder / f"filter-{digest}{SUFFIX}"
            if alone:
                remove_remnants(path)
            return _kept_or_computed(path, source, predicate)
    finally:
        os.close(descriptor)


def _kept_or_computed(path: Path, source: Node, predicate: Callable[..., Any]) -> Offsets:
    facts = FileFacts(source.cardinality, 0, 0, 0)
    kept = read_index(path, "filter", facts)
    if kept is not None and _holds(kept[:-1], source, predicate):
        return kept[:-1]
    positions = _computed(source, predicate)
    with suppress(OSError):  # without room for it every task computes its own
        write_index(path, "filter", facts, np.append(positions, np.uint64(source.cardinality)))
    return positions


def _computed(source: Node, predicate: Callable[..., Any]) -> Offsets:
    found: list[int] = []
    for start in range(0, source.cardinality, BLOCK_ROWS):
        rows = source.each(range(start, min(start + BLOCK_ROWS, source.cardinality)), (0,))
        found += [start + place for place, row in enumerate(rows) if call(predicate, row)]
    return np.array(found, np.uint64)


def _holds(positions: Offsets, source: Node, predicate: Callable[..., Any]) -> bool:
    """Return whether the predicate says the same at some positions as when it was asked before."""
    step = max(1, source.cardinality // CHECKED)
    places = np.arange(0, source.cardinality, step, dtype=np.uint64)
    found = np.searchsorted(positions, places)
    were = [at < len(positions) and positions[at] == place for at, place in zip(found, places, strict=True)]
    rows = source.each(places.astype(np.int64), (0,))
    return were == [bool(call(predicate, row)) for row in rows]
