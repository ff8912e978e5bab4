"""The speed at which input is read: of files step by step, and of a program's dataset."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from dtrain.data.dataset import Dataset
from dtrain.data.examples import parse_example
from dtrain.data.inspection.describing import features_of
from dtrain.data.inspection.file_kinds import TFRECORD, DataFile, batches_of
from dtrain.data.node import Node
from dtrain.data.prefetching.budget import size_bytes
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.data.stores.opening import open_file, opened
from dtrain.data.structure import Element, arrays_of
from dtrain.errors import InputError

RANGE_BYTES = 1 << 20
LOOK_EVERY_S = 0.05


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a step.

    Attributes:
        step: its name.
        threads: that did it at once.
        rows_per_s: rows per second of all threads together; 0 if the number of rows is unknown.
        rows_per_cpu_s: for each second of a core.
        mb_per_s: megabytes of the files; of a program's dataset, of its arrays.
        batch_ms: seconds of the clock for a batch, times 1,000.
    """

    step: str
    threads: int
    rows_per_s: float
    rows_per_cpu_s: float
    mb_per_s: float
    batch_ms: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The speeds of all steps.

    Attributes:
        rows: of all files; None: only reading tells.
        bytes: of all files.
        batch_rows: rows of a batch.
        speeds: of each step.
        obstacles: the parts for which all must be read from the front.
    """

    rows: int | None
    bytes: int | None
    batch_rows: int
    speeds: list[Speed]
    obstacles: list[str]


Then = Callable[[Element], Any]
Work = Callable[[], tuple[float, int]]
"""A piece of work; it returns how many rows and bytes it has done; (0, 0): there is nothing to do."""


def measure_files(files: Sequence[DataFile], batch_rows: int, seconds: float) -> Measured:
    """Measure reading, and where rows are tf.train.Examples parsing, with one thread and with all cores.

    Args:
        files: of one kind.
        batch_rows: rows of a batch.
        seconds: for which each step is measured.

    Raises:
        InputError: a file is damaged, cannot be read, or has no rows.
    """
    dataset = batches_of(list(files), batch_rows)
    nbytes = sum(open_file(file.path).state()[0] for file in files)
    threads = sorted({1, len(os.sched_getaffinity(0))})
    found = list(dict.fromkeys([each.obstacle for each in files if each.obstacle] + obstacles(dataset.node)))
    steps: dict[str, Then] = {"rows": lambda batch: batch}
    features = features_of(files) if files[0].kind == TFRECORD else None
    if features is not None:
        steps["parsed"] = lambda batch: parse_example(batch, features)
    if found:
        node, rows, row_bytes = dataset.node, None, 0.0
        speeds = [
            _speed(name, 1, _in_order(node, then), seconds, 0, batch_rows) for name, then in steps.items()
        ]
    else:
        node = addressed(dataset.node)
        rows = addressed(batches_of(list(files), 1).node).cardinality
        row_bytes = nbytes / max(1, rows)
        speeds = [
            _speed(name, n, _by_number(node, then), seconds, row_bytes, batch_rows)
            for name, then in steps.items()
            for n in threads
        ]
    speeds.insert(0, _speed("bytes", 1, _reading(files, row_bytes), seconds, 0, batch_rows))
    return Measured(rows=rows, bytes=nbytes, batch_rows=batch_rows, speeds=speeds, obstacles=found)


def measure_dataset(dataset: Dataset, seconds: float) -> Measured:
    """Measure the elements of a program's dataset, as its loop gets them.

    Raises:
        InputError: it has no elements, or a file is damaged.
    """
    found = obstacles(dataset.node)
    node = addressed(dataset.node)
    rows = max(1, node.batch_size)
    speed = _speed("dataset", 1, _in_order(node, lambda batch: batch), seconds, 0, rows)
    total = node.cardinality * rows if node.cardinality >= 0 else None
    return Measured(rows=total, bytes=None, batch_rows=rows, speeds=[speed], obstacles=found)


def _speed(step: str, threads: int, work: Work, seconds: float, row_bytes: float, batch_rows: int) -> Speed:
    """Do work in some threads for a time; `row_bytes` of a row are counted if work counts none."""
    if not any(work()):  # also learns what the first time takes longer
        raise InputError(f"{step}: expected rows to measure, found none")
    done: list[tuple[float, int]] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            while not over.is_set():
                done.append(work())
        except Exception as error:
            failures.append(error)
            over.set()

    workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    for each in workers:
        each.start()
    try:
        over.wait(seconds)
    finally:
        over.set()
    for each in workers:
        each.join()
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    if failures:
        raise failures[0]
    rows, nbytes = sum(rows for rows, _ in done), sum(nbytes for _, nbytes in done)
    return Speed(
        step=step,
        threads=threads,
        rows_per_s=rows / wall_s,
        rows_per_cpu_s=rows / max(cpu_s, 1e-9),
        mb_per_s=(nbytes or rows * row_bytes) / wall_s / 1e6,
        batch_ms=1000 * wall_s * batch_rows / rows if rows else 0.0,
    )


def _reading(files: Sequence[DataFile], row_bytes: float) -> Work:
    """Return work that reads a range of the files' bytes, again from the front at their end."""
    ranges = [
        (file.path, start, min(RANGE_BYTES, nbytes - start))
        for file in files
        for nbytes in [open_file(file.path).state()[0]]
        for start in range(0, nbytes, RANGE_BYTES)
    ]
    numbers = count()

    def work() -> tuple[float, int]:
        if not ranges:
            return 0, 0
        path, start, nbytes = ranges[next(numbers) % len(ranges)]
        opened(path).read(start, nbytes)
        return (nbytes / row_bytes if row_bytes else 0), nbytes

    return work


def _by_number(node: Node, then: Then) -> Work:
    """Return work that computes the next batch of an addressable node, and something of it."""
    numbers = count()

    def work() -> tuple[float, int]:
        if not node.cardinality:
            return 0, 0
        batch = node.element(next(numbers) % node.cardinality, (0,))
        then(batch)
        return len(arrays_of(batch)[0]), 0

    return work


def _in_order(node: Node, then: Then) -> Work:
    """Return work that takes the next element, as a loop does, and makes something of it; without an end."""
    elements: list[Iterator[Element]] = [iter(Dataset(node))]

    def work() -> tuple[float, int]:
        element = next(elements[0], None)
        if element is None:
            elements[0] = iter(Dataset(node))
            element = next(elements[0], None)
        if element is None:
            return 0, 0
        then(element)
        return len(arrays_of(element)[0]) if node.batch_size else 1, size_bytes(element)

    return work
