"""The mean of contributions, in rank order. Rule 3."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Blocks = Sequence[Array]

PART = 1 << 15
"""Elements that are averaged at a time."""


def mean(gradients: Sequence[Blocks], trainable: Sequence[bool]) -> Blocks:
    """Sum in the given order, divided by the real count.

    The first blocks of each are those of the groups, which are `trainable` or not. They are added up into the first one's memory
    where that may be written; whole numbers (and truth values, as 0 and 1) in 64 bits, and their mean is rounded down. What is not
    trained and is the same in all, such as a frozen layer, stays exactly that. The blocks after them are pairs of row numbers and
    rows: the mean has every row that any contribution lists, and one that does not list it counts as zero.
    """
    if len(gradients) == 1:
        return gradients[0]
    dense = len(trainable)
    by_group = zip(*(gradient[:dense] for gradient in gradients), strict=True)
    means = [_dense_mean(blocks, trained) for blocks, trained in zip(by_group, trainable, strict=True)]
    for position in range(dense, len(gradients[0]), 2):
        means += _row_mean([(gradient[position], gradient[position + 1]) for gradient in gradients])
    return means


def _dense_mean(blocks: Blocks, trained: bool) -> Array:
    first, *others = blocks
    if first.dtype.kind == "f":
        return _mean_of_floats(first, others) if trained else _mean_of_state(first, others)
    total = first.astype(np.int64)
    for block in others:
        np.add(total, block, out=total, casting="unsafe")
    return (total // len(blocks)).astype(first.dtype)


def _mean_of_state(first: Array, others: Sequence[Array]) -> Array:
    """Equal floats are their own mean, which their sum divided by their count need not be."""
    differs = np.any([other != first for other in others], axis=0)
    return np.where(differs, _mean_of_floats(first.copy(), others), first)


def _mean_of_floats(first: Array, others: Sequence[Array]) -> Array:
    """Part by part, each small enough to stay in the cache until it is divided."""
    mean = first if first.flags.writeable else np.empty_like(first)
    for start in range(0, first.size, PART):
        part = slice(start, start + PART)
        total = mean[part]
        np.add(first[part], others[0][part], out=total)
        for other in others[1:]:
            np.add(total, other[part], out=total)
        np.divide(total, total.dtype.type(1 + len(others)), out=total)
    return mean


def _row_mean(pairs: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Of (ascending ids, flat rows)."""
    union = np.unique(np.concatenate([ids for ids, _ in pairs]))
    row_size = max((rows.size // ids.size for ids, rows in pairs if ids.size), default=0)
    total = np.zeros((len(union), row_size), pairs[0][1].dtype)
    for ids, rows in pairs:
        total[np.searchsorted(union, ids)] += rows.reshape(len(ids), row_size)
    return union, np.divide(total, total.dtype.type(len(pairs)), out=total).reshape(-1)
