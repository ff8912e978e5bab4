"""The mean of contributions in the order of their parts, and the look for NaN and infinity in gradients.

The order is that of docs/design/protocol.md#determinism.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dtrain.types import Array, Blocks

PIECE = 1 << 15
"""Elements that are averaged at a time."""


def mean(
    gradients: Sequence[Blocks],
    trainable: Sequence[bool],
    parts: int | None = None,
    weights: Sequence[int] | None = None,
    present: Blocks = (),
) -> Blocks:
    """Return the sum in the given order, divided by the number of parts; with `weights` the weighted mean.

    A gradient is `[block]`, flat arrays. The first blocks are those of the groups, which are `trainable` or
    not. They are added up into the first one's memory where that may be written; whole numbers (and truth
    values, as 0 and 1) in 64 bits, and their mean is rounded down. A group that is not trained and is the
    same in all, such as a frozen layer's, stays exactly that. The blocks after them are pairs of row numbers
    and rows: the mean has every row that any contribution lists, and one that does not list it counts as
    zero.

    Args:
        gradients: at least one.
        parts: at least as many as gradients: those without examples have no gradient, and count as zero; for
            groups that are not trained, as their `present` value. Default: as many.
        weights: numbers of examples; parts without examples then do not count.
        present: values of all groups.
    """
    count = len(gradients) if parts is None or weights is not None else parts
    if weights is not None and len(set(weights)) == 1:
        weights = None
    if count == 1:
        return gradients[0]
    dense = len(trainable)
    means: list[Array] = []
    for index, trained in enumerate(trainable):
        blocks = [gradient[index] for gradient in gradients]
        means.append(
            _mean_of_floats(blocks, count, weights)
            if trained
            else mean_of_state(blocks, count, weights, present[index] if count > len(blocks) else blocks[0])
        )
    for position in range(dense, len(gradients[0]), 2):
        means += row_mean(
            [(gradient[position], gradient[position + 1]) for gradient in gradients], count, weights
        )
    return means


def mean_of_state(
    blocks: Sequence[Array], count: int, weights: Sequence[int] | None, present: Array
) -> Array:
    """Return the mean of untrained values; equal ones stay, while their sum by their count may differ. Of
    `count` parts those beyond the blocks count as `present`.
    """
    first = blocks[0]
    others = [*blocks[1:], *[present] * (count - len(blocks))]
    if first.dtype.kind != "f":
        total = first.astype(np.int64)
        for block in others:
            np.add(total, block, out=total, casting="unsafe")
        return (total // count).astype(first.dtype)
    differs = np.any([other != first for other in others], axis=0)
    return np.where(differs, _mean_of_floats([first.copy(), *others], count, weights), first)


def _mean_of_floats(blocks: Sequence[Array], count: int, weights: Sequence[int] | None) -> Array:
    first = blocks[0]
    mean = first if first.flags.writeable else np.empty_like(first)
    for start in range(0, first.size, PIECE):
        piece = slice(start, start + PIECE)
        mean_of_floats([block[piece] for block in blocks], count, weights, mean[piece])
    return mean


def mean_of_floats(blocks: Sequence[Array], count: int, weights: Sequence[int] | None, out: Array) -> Array:
    """Write the mean of floating-point blocks into `out`, which may be the first of them, and return it.
    Parts beyond the blocks count as zero.
    """
    first, *others = blocks
    kind = out.dtype.type
    if weights is not None:
        np.multiply(first, kind(weights[0]), out=out)
        for other, weight in zip(others, weights[1:], strict=True):
            np.add(out, other * kind(weight), out=out)
        np.divide(out, kind(sum(weights)), out=out)
        return out
    if others:
        np.add(first, others[0], out=out)
    elif out is not first:
        out[...] = first
    for other in others[1:]:
        np.add(out, other, out=out)
    if count & (count - 1):
        np.divide(out, kind(count), out=out)
    else:  # the same bits: the inverse of a power of two is exact
        np.multiply(out, kind(1 / count), out=out)
    return out


def row_mean(
    pairs: Sequence[tuple[Array, Array]],
    count: int,
    weights: Sequence[int] | None,
    union: Array | None = None,
) -> tuple[Array, Array]:
    """Return the mean of pairs, as such a pair of new arrays.

    A pair is ids (int64, [k], ascending) and rows (flat, k * row size, in the table's dtype); `union` are all
    ids, where the caller knows them.
    """
    if union is None:
        union = np.unique(np.concatenate([ids for ids, _ in pairs]))
    row_size = max((rows.size // ids.size for ids, rows in pairs if ids.size), default=0)
    total = np.zeros((len(union), row_size), pairs[0][1].dtype)
    kind = total.dtype.type
    for number, (ids, rows) in enumerate(pairs):
        listed = rows.reshape(len(ids), row_size)
        total[np.searchsorted(union, ids)] += listed if weights is None else listed * kind(weights[number])
    divisor = kind(count if weights is None else sum(weights))
    return union, np.divide(total, divisor, out=total).reshape(-1)


def any_non_finite(blocks: Iterable[Array]) -> bool:
    """Return whether a floating-point block holds NaN or infinity; `vdot` alone does not warn on overflow."""
    return any(
        block.dtype.kind == "f" and not math.isfinite(np.vdot(block, block)) and not np.isfinite(block).all()
        for block in blocks
    )
