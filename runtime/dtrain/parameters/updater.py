"""The update of variables: version n + 1 of version n and the mean of the gradients, block by block.

Means are taken in the order of the parts (docs/design/protocol.md#determinism).

The rule *Blocks* (docs/design/collectives.md#blocks): a store is cut into blocks, of flat arrays and of rows
of tables alike. Whoever takes a block makes it: one thread, several, or several processes. The grid does not
depend on their number, so the bits do not either.

The rule *Two sides* (docs/design/collectives.md#two-sides):

1. Where a process may die in the midst of an update and others go on, version n + 1 is written beside
   version n. A block reads one side and writes the other, so it may be made twice.
2. A table of which a rule moves the listed rows alone is there once. The new rows are written beside it, and
   carried into it when those of all tables are there; both may be done twice.
3. Elsewhere there is one side, and an update is made in its place.

Some optimizers change only the rows that a gradient lists (SGD, Adagrad). Then the blocks of a table are
pieces of the list of all these rows, and the cost of a step depends on its batch. Others change every row
(momentum, Adam). Then the blocks are pieces of the table, and a row that is not listed has a zero gradient.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import msgspec
import numpy as np

from dtrain.learning.core import clipping
from dtrain.learning.core.clipping import (
    PIECE_ELEMENTS,
    clip_factor,
    global_clip_factor,
    squared_norm_of_piece,
)
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import Optimizer
from dtrain.parameters.placement import Group, ServerLayout, Shard
from dtrain.parameters.table import VALUES
from dtrain.types import Array, Arrays, Blocks

BLOCK_ELEMENTS = 1 << 16
"""Elements of a block, updated while it is in the cache (fastest of 2^14 to 2^16)."""
Parts = Sequence[dict[str, Array]]
"""By group and then by table, the arrays of a store by name: `VALUES`, and the slots of what is trained."""
RowsBeside = Callable[[int, int], Arrays]
"""Returns memory for rows `first` to `last` of those that a step moves, by name, in the form of the table."""
Run = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Calls a function once with each block, or piece."""


def run_here(do: Callable[[Any], None], blocks: Iterable[Any]) -> None:
    for block in blocks:
        do(block)


class Contributions(msgspec.Struct, frozen=True):
    """The gradients that make one version.

    Attributes:
        blocks: `[contribution][block]`, flat, in the order of their parts: each group, then ids and rows of
            each trainable table.
        count: the divisor of the mean: as many, and the parts without examples.
        version: of the values that are read; the step makes the next one.
        rate_scale: factor of the learning rate, for a gradient that comes late.
        means: by trained group, their mean, where it has been made over several hosts.
    """

    blocks: Sequence[Blocks]
    count: int
    weights: Sequence[int] | None
    version: int
    rate_scale: float = 1.0
    means: Mapping[int, Array] | None = None

    @classmethod
    def of(
        cls, blocks: Sequence[Blocks], empty: int, examples: Sequence[int] | None, version: int
    ) -> "Contributions":
        """Return the contributions of a step, of which `empty` parts had no examples."""
        count = len(blocks) + (empty if examples is None else 0)
        weights = None if examples is None or len(set(examples)) == 1 else examples
        return cls(blocks, count, weights, version)


class Block(msgspec.Struct, frozen=True, dict=True):
    """Elements `start` to `stop` of a group, or so many of the rows that a step moves of a table.

    Attributes:
        part: the number of the group, or of the table behind all groups.
    """

    part: int
    start: int
    stop: int

    @cached_property
    def elements(self) -> slice:
        return slice(self.start, self.stop)


class Piece(Block, frozen=True):
    """Neighbours within one variable's mean gradient, whose squares are added up in one call."""

    number: int


def _cut(part: int, size: int, length: int) -> list[Block]:
    return [Block(part, start, min(start + length, size)) for start in range(0, size, length)]


class Step(msgspec.Struct, frozen=True):
    """The making of one version, as all of its blocks have it in common.

    Attributes:
        number: of updates that the optimizer has made before.
        ends: whether this is the last version.
        now, new: the arrays that are read, and those that are written: the same ones where that is in place.
    """

    given: Contributions
    optimizer: Optimizer
    number: int
    ends: bool
    now: Parts
    new: Parts


def finalize(optimizer: Optimizer, arrays: Arrays) -> None:
    """Complete the last version of values that are trained. To do so again does no harm."""
    slots = dict(arrays)
    optimizer.finalize(slots.pop(VALUES), slots)


class _GroupUpdate:
    """The flat array of one group of dense variables."""

    def __init__(self, part: int, group: Group, elements: int) -> None:
        self.blocks = _cut(part, group.size, elements)
        self.beside: Sequence[Block] = ()
        ends = [*group.offsets[1:], group.size]
        self.variables = list(zip(group.offsets, ends, strict=True)) if group.trainable else []
        self._part = part
        self._group = group
        self._limits: list[tuple[int, int, float]] = []

    def begin(self, step: Step) -> None:
        self._step = step

    def limit(self, factors: Sequence[float]) -> None:
        pairs = zip(self.variables, factors, strict=True)
        self._limits = [(*variable, factor) for variable, factor in pairs if factor != 1.0]

    def mean(self, block: Block) -> Array:
        given = self._step.given
        if given.means is not None:
            return given.means[self._part][block.elements]
        if given.count == 1:
            return given.blocks[0][self._part][block.elements]
        blocks = [each[self._part][block.elements] for each in given.blocks]
        return mean_of_floats(blocks, given.count, given.weights, np.empty_like(blocks[0]))

    def _limited(self, block: Block, mean: Array) -> Array:
        limited = mean.copy()
        for start, stop, factor in self._limits:
            if start < block.stop and block.start < stop:
                common = slice(max(start - block.start, 0), stop - block.start)
                limited[common] = clipping.scaled(mean[common], factor)
        return limited

    def make(self, block: Block) -> None:
        step, given, elements = self._step, self._step.given, block.elements
        now, new = step.now[self._part], step.new[self._part]
        value, out = now[VALUES][elements], new[VALUES][elements]
        if not self._group.trainable or step.optimizer.values:
            blocks = [each[self._part][elements] for each in given.blocks]
            one = given.count == 1
            out[...] = blocks[0] if one else mean_of_state(blocks, given.count, given.weights, value)
            return
        slots = {name: array[elements] for name, array in new.items() if name != VALUES}
        for name, slot in slots.items() if new is not now else ():
            if new[name] is not now[name]:
                slot[...] = now[name][elements]
        mean = self.mean(block)
        if self._limits:
            mean = self._limited(block, mean)
        step.optimizer.update(value, mean, slots, step.number, rate_scale=given.rate_scale, out=out)
        if step.ends:
            step.optimizer.finalize(out, slots)

    def finalize(self, block: Block) -> None:
        if self._group.trainable:
            arrays = self._step.now[self._part].items()
            finalize(self._step.optimizer, {name: array[block.elements] for name, array in arrays})


class _TableUpdate:
    """The rows of one table.

    Attributes:
        ids: the rows that any gradient of the step lists, ascending.
    """

    def __init__(
        self, part: int, shard: Shard, block: int, elements: int, rows_beside: RowsBeside | None
    ) -> None:
        """Begin; the table's ids are block number `block` of a gradient, and its rows the next one."""
        self._part = part
        self._shard = shard
        self._block = block
        self._at_a_time = max(1, elements // shard.width)
        self._rows_beside = rows_beside
        self._factor = 1.0

    def begin(self, step: Step) -> None:
        self._step = step
        lists = [(each[self._block], each[self._block + 1]) for each in step.given.blocks]
        self._lists = [(ids, rows.reshape(len(ids), self._shard.width)) for ids, rows in lists]
        self.ids = np.unique(np.concatenate([ids for ids, _ in lists])) if lists else np.empty(0, np.int64)
        self.variables = [(0, self.ids.size * self._shard.width)]
        now, new = (
            {name: array.reshape(len(array), self._shard.width) for name, array in parts[self._part].items()}
            for parts in (step.now, step.new)
        )
        two_sides = step.new[self._part] is not step.now[self._part]
        self._arrays = now, new if two_sides else now
        self._moves_all = two_sides or not step.optimizer.touches_listed_rows_only
        blocks = _cut(self._part, self._shard.rows if self._moves_all else len(self.ids), self._at_a_time)
        self.blocks, self.beside = (blocks, []) if self._rows_beside is None else ([], blocks)
        if not lists:
            self.beside = []  # no version is made

    def limit(self, factors: Sequence[float]) -> None:
        [self._factor] = factors

    def mean(self, piece: Block) -> Array:
        """Return elements of the mean gradient of the listed rows, which stand side by side."""
        width = self._shard.width
        first, last = piece.start // width, -(-piece.stop // width)
        flat = np.ascontiguousarray(self._mean_of(first, last).rows).reshape(-1)
        return flat[piece.start - first * width : piece.stop - first * width]

    def _mean_of(self, first: int, last: int) -> SparseRows:
        ids, width, given = self.ids[first:last], self._shard.width, self._step.given
        if not ids.size:
            return SparseRows(ids, np.empty((0, width), self._shard.dtype))
        pairs = []
        for listed, rows in self._lists:
            start, stop = np.searchsorted(listed, (ids[0], ids[-1] + 1)).tolist()
            pairs.append((listed[start:stop], rows[start:stop]))
        if given.count == 1:
            return SparseRows(*pairs[0])
        if self._step.optimizer.values:
            held = self._arrays[0][VALUES][ids]
            blocks = [held.copy() for _ in pairs]
            for block, (listed, rows) in zip(blocks, pairs, strict=True):
                block[np.searchsorted(ids, listed)] = rows
            return SparseRows(ids, mean_of_state(blocks, given.count, given.weights, held))
        return SparseRows(ids, row_mean(pairs, given.count, given.weights, ids))

    def make(self, block: Block) -> None:
        step, optimizer = self._step, self._step.optimizer
        first, last = block.start, block.stop
        if self._moves_all:
            first, last = np.searchsorted(self.ids, (first, last)).tolist()
        gradient: clipping.Gradient = clipping.scaled(self._mean_of(first, last), self._factor)
        if optimizer.clipvalue is not None:
            gradient = clipping.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue)
        assert isinstance(gradient, SparseRows), "a gradient keeps its kind"
        slots, ids = self._place(block, gradient.ids)
        value = slots.pop(VALUES)
        if optimizer.values:
            value[ids] = gradient.rows
            return
        scale = step.given.rate_scale
        optimizer.update_rows(value, ids, gradient.rows, slots, step.number, rate_scale=scale)
        if step.ends and self._moves_all:  # else there are no moving averages, with which every row moves
            optimizer.finalize(value, slots)

    def _place(self, block: Block, ids: Array) -> tuple[dict[str, Array], Array]:
        """Return the arrays in which a block is made, and the numbers there of the rows that are listed."""
        now, new = self._arrays
        if self._rows_beside is not None:
            arrays = self._rows_beside(block.start, block.stop)
            for name, array in arrays.items():
                array[...] = now[name][self._moved(block)]
            return dict(arrays), ids - block.start if self._moves_all else np.arange(len(ids), dtype=np.int64)
        if not self._moves_all:
            return dict(now), ids
        arrays = {name: array[block.elements] for name, array in new.items()}
        if new is not now:
            for name, array in arrays.items():
                array[...] = now[name][block.elements]
        return arrays, ids - block.start

    def _moved(self, block: Block) -> slice | Array:
        return block.elements if self._moves_all else self.ids[block.elements]

    def carry(self, block: Block) -> None:
        assert self._rows_beside is not None, "it was made beside the table"
        now, _ = self._arrays
        for name, array in self._rows_beside(block.start, block.stop).items():
            now[name][self._moved(block)] = array

    def finalize(self, block: Block) -> None:
        if self._moves_all:
            now, _ = self._arrays
            finalize(self._step.optimizer, {name: array[block.elements] for name, array in now.items()})


class Updater:
    """The blocks of the step that is begun.

    Attributes:
        dense: blocks of the groups of dense variables, whatever the step is.
        blocks: to be made. Together they are everything that changes, but for those `beside`.
        beside: blocks to be made beside their tables, and carried into them when all of them are made.
        limited: whether all `pieces` are to be squared, and then `limit` called, before a block is made.
        pieces: of the mean gradient, where its norm is limited.
    """

    def __init__(
        self,
        layout: ServerLayout,
        elements: int = BLOCK_ELEMENTS,
        squares: Array | None = None,
        rows_beside: Mapping[str, RowsBeside] | None = None,
    ) -> None:
        """Cut a store.

        Args:
            elements: of a block at most, where a row has no more.
            squares: float64, one for each piece (`pieces_in`), which all processes share that make a step.
            rows_beside: by name, memory of the tables of which new rows are written beside them.
        """
        groups = [_GroupUpdate(part, group, elements) for part, group in enumerate(layout.groups)]
        trained = [(part, shard) for part, shard in enumerate(layout.tables, len(groups)) if shard.trainable]
        self._tables = {
            part: _TableUpdate(
                part, shard, len(groups) + 2 * number, elements, (rows_beside or {}).get(shard.name)
            )
            for number, (part, shard) in enumerate(trained)
        }
        self._parts: dict[int, _GroupUpdate | _TableUpdate] = {**dict(enumerate(groups)), **self._tables}
        self._squares = np.zeros(pieces_in(layout)) if squares is None else squares
        self.dense: Sequence[Block] = [block for group in groups for block in group.blocks]
        self._groups = groups
        self._of_variables: list[list[Piece]] = []
        self.limited = False
        self.blocks: Sequence[Block] = self.dense
        self.beside: Sequence[Block] = ()
        self.pieces: Sequence[Piece] = ()

    def begin(self, step: Step) -> None:
        """Cut a step into blocks: which rows of tables it moves is known now."""
        for part in self._parts.values():
            part.begin(step)
        if tables := self._tables.values():
            self.blocks = [*self.dense, *(block for table in tables for block in table.blocks)]
            self.beside = [block for table in tables for block in table.beside]
        self._optimizer = step.optimizer
        if self.limited or not step.optimizer.elementwise:
            limited = bool(step.given.blocks) and not step.optimizer.elementwise
            self._limit([1.0] * len(self._of_variables))
            self._of_variables = self._cut_pieces() if limited else []
            self.limited = bool(self._of_variables)
            self.pieces = [piece for pieces in self._of_variables for piece in pieces]

    @property
    def rows_listed(self) -> dict[int, Array]:
        """By part, the rows of each trained table that the gradients of the step list, ascending."""
        return {part: table.ids for part, table in self._tables.items()}

    def make(self, block: Block) -> None:
        """Make the next version of a block, from the one before and the gradients."""
        self._parts[block.part].make(block)

    def carry(self, block: Block) -> None:
        """Copy new rows that were made beside their table into it."""
        self._tables[block.part].carry(block)

    def finalize(self, block: Block) -> None:
        """Complete a block of the present version, with which training ends after all."""
        self._parts[block.part].finalize(block)

    # Limits of norms

    @cached_property
    def _of_groups(self) -> list[list[Piece]]:
        return self._pieces_of(dict(enumerate(self._groups)), 0)

    def _cut_pieces(self) -> list[list[Piece]]:
        pieces = self._of_groups
        return [*pieces, *self._pieces_of(self._tables, sum(map(len, pieces)))]

    @staticmethod
    def _pieces_of(parts: Mapping[int, _GroupUpdate | _TableUpdate], first: int) -> list[list[Piece]]:
        numbers = count(first)
        return [
            [
                Piece(part, at, min(at + PIECE_ELEMENTS, stop), next(numbers))
                for at in range(start, stop, PIECE_ELEMENTS)
            ]
            for part, update in parts.items()
            for start, stop in update.variables
        ]

    def square(self, piece: Piece) -> None:
        self._squares[piece.number] = squared_norm_of_piece(self._parts[piece.part].mean(piece))

    def limit(self) -> None:
        """Find the factors by which gradients are multiplied, once all squares are there."""
        if not self.limited:
            return
        optimizer = self._optimizer
        squares = [
            sum(self._squares[pieces[0].number : pieces[-1].number + 1].tolist(), 0.0) if pieces else 0.0
            for pieces in self._of_variables
        ]
        if optimizer.clipnorm is not None:
            factors = [clip_factor(math.sqrt(each), optimizer.clipnorm) for each in squares]
        else:
            assert optimizer.global_clipnorm is not None
            factors = [global_clip_factor(math.sqrt(sum(squares)), optimizer.global_clipnorm)] * len(squares)
        self._limit(factors)

    def _limit(self, factors: Sequence[float]) -> None:
        left = iter(factors)
        for part in self._parts.values():
            part.limit([next(left, 1.0) for _ in part.variables])


def pieces_in(layout: ServerLayout) -> int:
    """Return how many pieces the trained variables have at most whose squares are added up."""
    shards = [shard for group in layout.groups for shard in group.shards] + list(layout.tables)
    return sum(-(-shard.size // PIECE_ELEMENTS) for shard in shards if shard.trainable)


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
