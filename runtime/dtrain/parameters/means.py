"""Means of contributions in the order of their parts, and the look for NaN and infinity in gradients.

The order is that of docs/design/protocol.md#determinism.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dtrain.parameters.placement import ServerLayout
from dtrain.types import Array, Blocks


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
    return np.where(differs, mean_of_floats([first, *others], count, weights, np.empty_like(first)), first)


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
    pairs: Sequence[tuple[Array, Array]], count: int, weights: Sequence[int] | None, union: Array
) -> Array:
    """Return the mean of the rows `union`, of pairs of ids (int64, ascending) and rows, [ids, width]."""
    total = np.zeros((len(union), pairs[0][1].shape[1]), pairs[0][1].dtype)
    kind = total.dtype.type
    for number, (ids, rows) in enumerate(pairs):
        total[np.searchsorted(union, ids)] += rows if weights is None else rows * kind(weights[number])
    divisor = kind(count if weights is None else sum(weights))
    total /= divisor
    return total


def by_direction(parts: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return the mean direction of a variable's differences, as long as they are on the mean; where that is
    zero, their mean. Its length is not that of the mean, which is the shorter the less the differences agree.
    """
    lengths = [float(np.linalg.norm(part)) for part in parts]
    weighed = list(zip(parts, weights, lengths, strict=True))
    kind = parts[0].dtype.type
    direction = sum(
        (part * kind(w / length) for part, w, length in weighed if length), np.zeros_like(parts[0])
    )
    norm = float(np.linalg.norm(direction))
    if not norm:
        return np.asarray(sum(part * kind(w / sum(weights)) for part, w, _ in weighed))
    mean_length = sum(w * length for _, w, length in weighed) / sum(weights)
    return np.asarray(direction * kind(mean_length / norm))


def merged_by_direction(
    layout: ServerLayout, blocks: Sequence[Blocks], weights: Sequence[float]
) -> list[Array]:
    """Merge contributions (`[contribution][block]`, as pushed) to one: what is trained by its direction,
    variable by variable, or by the shard of a variable that lies here. Others, and rows of tables, by their
    mean.
    """
    merged: list[Array] = []
    for number, group in enumerate(layout.groups):
        flats = [each[number] for each in blocks]
        if group.trainable:
            views = [group.views(flat) for flat in flats]
            shards = [by_direction([view[shard.name] for view in views], weights) for shard in group.shards]
            merged.append(np.concatenate([shard.reshape(-1) for shard in shards]))
        else:
            merged.append(mean_of_state(flats, len(flats), None, flats[0]))
    trained = [table for table in layout.tables if table.trainable]
    for first, table in zip(range(len(layout.groups), len(blocks[0]), 2), trained, strict=True):
        pairs = [(each[first], each[first + 1].reshape(-1, table.width)) for each in blocks]
        union = np.unique(np.concatenate([ids for ids, _ in pairs]))
        merged += [union, row_mean(pairs, len(pairs), None, union).reshape(-1)]
    return merged


def any_non_finite(blocks: Iterable[Array]) -> bool:
    """Return whether a floating-point block holds NaN or infinity; `vdot` alone does not warn on overflow."""
    return any(
        block.dtype.kind == "f" and not math.isfinite(np.vdot(block, block)) and not np.isfinite(block).all()
        for block in blocks
    )
