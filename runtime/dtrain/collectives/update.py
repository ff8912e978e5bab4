"""The update of variables that several replicas hold together: blocks, rows of tables, and whole slices.

A replica updates its slice of every variable, block by block, in memory that all replicas map. What a block's
update changes can be put aside before, and restored where the process that changed it has died in its midst
(docs/design/collectives.md#put-aside). The numbers are those of `means.mean` and `Store.apply`. Tables of
which gradients list rows are updated by `RowUpdate`.

Where the optimizer's rule leaves rows alone that are not listed, the blocks of an update are pieces of the
list of all rows that any gradient lists, so that a step costs what its batch does. Where the rule moves every
row (momentum, Adam, ...), they are pieces of the table, and rows that are not listed have a gradient of zero.

The rule *Put aside* (docs/design/collectives.md#put-aside):

1. Before a block is changed, it is put aside whole and the word `saved` counts it; when it is changed,
   `done` counts it.
2. A successor begins at the first block that is not done. If that one was put aside, it may be half changed
and
   is restored first; if not, it is as it was, and what lies aside may be half written.
3. What the word says lies aside is not written again before the block is done: a successor that has restored
a
   block does not put it aside once more, for it may die in the midst of that.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from dtrain.collectives.blocks import Block, Piece, TableInGroup, blocks_of, pieces_of, sizes_without
from dtrain.collectives.board import Board, count, counted
from dtrain.learning.core import clipping
from dtrain.learning.core.clipping import (
    PIECE_ELEMENTS,
    clip_factor,
    global_clip_factor,
    squared_norm_of_piece,
)
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import Optimizer
from dtrain.parameters.means import mean_of_floats, mean_of_state, row_mean
from dtrain.parameters.placement import Group
from dtrain.parameters.store import Store
from dtrain.types import Array, Blocks

GivenRows = tuple[Array, Array]
"""The rows of one gradient: ids (int64, ascending, each once) and the rows, flat."""


class RowBlock(msgspec.Struct, frozen=True):
    """Rows number `first` to `last` of those that the gradients of a step list."""

    group: int
    first: int
    last: int


AnyBlock = Block | RowBlock


class RowUpdate:
    """One table in the updates of a store.

    Attributes:
        ids: the rows that any gradient of the step lists, ascending.
    """

    def __init__(self, group: int, slots: Sequence[str], arrays: Sequence[Array], width: int) -> None:
        self._group = group
        self._slots = slots
        self._arrays = [array.reshape(-1, width) for array in arrays]
        self._width = width
        self.begin((), 0, None)

    def begin(self, given: Sequence[GivenRows], count: int, weights: Sequence[int] | None) -> None:
        """Receive the rows of the gradients that make a version, as `Contributions`."""
        self._given = [(ids, rows.reshape(len(ids), self._width)) for ids, rows in given]
        self._count = count
        self._weights = weights
        listed = [ids for ids, _ in given]
        self.ids = np.unique(np.concatenate(listed)) if listed else np.empty(0, np.int64)

    # The cut

    def blocks(self, elements: int, *, listed_only: bool) -> list[AnyBlock]:
        """Return the blocks of an update that moves the listed rows only, or every row."""
        at_a_time = max(1, elements // self._width)
        rows = len(self.ids) if listed_only else len(self._arrays[0])
        cuts = [(first, min(first + at_a_time, rows)) for first in range(0, rows, at_a_time)]
        if listed_only:
            return [RowBlock(self._group, first, last) for first, last in cuts]
        width = self._width
        return [Block(self._group, first * width, last * width) for first, last in cuts]

    def pieces(self, number: int) -> list[Piece]:
        """Return the pieces of the listed rows' mean, which count from `number`."""
        size = self.ids.size * self._width
        return [
            Piece(self._group, start, min(start + PIECE_ELEMENTS, size), number + place)
            for place, start in enumerate(range(0, size, PIECE_ELEMENTS))
        ]

    # The mean

    def mean(self, first: int, last: int) -> SparseRows:
        ids = self.ids[first:last]
        if not ids.size:
            return SparseRows(ids, np.empty((0, self._width), self._arrays[0].dtype))
        pairs = []
        for listed, rows in self._given:
            start, stop = np.searchsorted(listed, (ids[0], ids[-1] + 1)).tolist()
            pairs.append((listed[start:stop], rows[start:stop]))
        if self._count == 1:
            return SparseRows(*pairs[0])
        _, rows = row_mean(pairs, self._count, self._weights, ids)
        return SparseRows(ids, rows.reshape(-1, self._width))

    def square(self, piece: Piece) -> float:
        first, last = piece.start // self._width, -(-piece.stop // self._width)
        skipped = first * self._width
        flat = np.ascontiguousarray(self.mean(first, last).rows).reshape(-1)
        return squared_norm_of_piece(flat[piece.start - skipped : piece.stop - skipped])

    # What is done with a block

    def copy(self, block: RowBlock, places: Sequence[Array]) -> None:
        ids = self.ids[block.first : block.last]
        for place, array in zip(places, self._arrays, strict=True):
            np.take(array, ids, axis=0, out=self._rows_of(place, ids))

    def put_back(self, block: RowBlock, places: Sequence[Array]) -> None:
        ids = self.ids[block.first : block.last]
        for place, array in zip(places, self._arrays, strict=True):
            array[ids] = self._rows_of(place, ids)

    def _rows_of(self, place: Array, ids: Array) -> Array:
        return place[: ids.size * self._width].reshape(-1, self._width)

    def update(self, block: AnyBlock, optimizer: Optimizer, factor: float, step: int) -> None:
        """Make the next version of a block; `factor` scales the gradient by the limits of its norm."""
        if isinstance(block, RowBlock):
            first, last, start, arrays = block.first, block.last, 0, self._arrays
        else:
            start, stop = block.start // self._width, block.stop // self._width
            first, last = np.searchsorted(self.ids, (start, stop)).tolist()
            arrays = [array[start:stop] for array in self._arrays]
        gradient: clipping.Gradient = clipping.scaled(self.mean(first, last), factor)
        if optimizer.clipvalue is not None:
            gradient = clipping.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue)
        assert isinstance(gradient, SparseRows), "a gradient keeps its kind"
        value, *slots = arrays
        named = dict(zip(self._slots, slots, strict=True))
        optimizer.update_rows(value, gradient.ids - start, gradient.rows, named, step)


class Contributions(msgspec.Struct, frozen=True):
    """The gradients that make one version.

    Attributes:
        blocks: `[contribution][block]`, flat, in the order of their parts: each group up to its tables, then
            ids and rows of each trainable table.
        count: the divisor of the mean: as many, and the parts without examples.
        means: by trained group, their mean, where it has been made over several hosts.
    """

    blocks: Sequence[Blocks]
    count: int
    weights: Sequence[int] | None
    version: int
    means: Mapping[int, Array] | None = None

    @classmethod
    def of(
        cls, blocks: Sequence[Blocks], empty: int, examples: Sequence[int] | None, version: int
    ) -> "Contributions":
        """Return the contributions of a step, of which `empty` parts had no examples."""
        count = len(blocks) + (empty if examples is None else 0)
        weights = None if examples is None or len(set(examples)) == 1 else examples
        return cls(blocks, count, weights, version)


def nbytes_aside(dtypes: Sequence[str], slots: int, elements: int) -> int:
    """Return the bytes that one block of groups of these dtypes takes aside, with its slots."""
    return elements * max((np.dtype(dtype).itemsize for dtype in dtypes), default=1) * (1 + slots)


def pieces_in(groups: Sequence[Group]) -> int:
    """Return how many pieces the trainable variables have whose squares are added up."""
    return sum(map(len, pieces_of(trained_variables(groups), PIECE_ELEMENTS)))


class BlockUpdate:
    """The blocks of a store, and where each lies aside while it is changed.

    Attributes:
        blocks: all of the step that is made, in order. Trainable tables count as groups behind the others.
        pieces: all of the mean gradient of that step, in order; their squares are added up for a limit of the
            norm.
    """

    def __init__(
        self,
        store: Store,
        aside: Sequence[Array],
        squares: Array,
        elements: int,
        tables: Sequence[TableInGroup] = (),
    ) -> None:
        """Begin.

        Args:
            aside: `[slice]`, of `nbytes_aside` bytes each.
            squares: float64, one for each piece.
            elements: of a block at most, and of a row.
        """
        self._store = store
        self._elements = elements
        positions = {index: position for position, index in enumerate(store.trainable)}
        groups = [
            [value, *(slots[positions[index]] for slots in store.slots.values() if index in positions)]
            for index, value in enumerate(store.values)
        ]
        sizes = sizes_without(store.groups, tables)
        self._arrays = [
            [array[:size] for array in arrays] for size, arrays in zip(sizes, groups, strict=True)
        ]
        names = tuple(store.slots)
        self._tables: list[RowUpdate] = []
        for table in tables:
            if table.trainable:
                arrays = [array[table.elements] for array in groups[table.group]]
                self._tables.append(RowUpdate(len(self._arrays), names, arrays, table.width))
                self._arrays.append(arrays)
        self._aside = [
            [
                each.view(arrays[0].dtype)[: len(arrays) * elements].reshape(len(arrays), elements)
                for arrays in self._arrays
            ]
            for each in aside
        ]
        self._squares = squares
        most = max(elements, PIECE_ELEMENTS)
        self._scratch = [
            np.empty(min(most, size), group.dtype) for size, group in zip(sizes, store.groups, strict=True)
        ]
        self._dense_blocks = blocks_of(sizes, elements)
        self._by_variable = pieces_of(trained_variables(store.groups, tables), PIECE_ELEMENTS)
        self._limits: list[tuple[Block, float]] = []
        self._row_factors: list[float] = []
        self.contributions = Contributions((), 0, None, 0)

    @property
    def contributions(self) -> Contributions:
        """Those of the step that is made; set them before the first block."""
        return self._contributions

    @contributions.setter
    def contributions(self, given: Contributions) -> None:
        """Cut a step into blocks: which rows of tables it moves is known now."""
        self._contributions = given
        listed_only = self._store.optimizer.touches_listed_rows_only
        self.blocks: list[AnyBlock] = list(self._dense_blocks)
        self._pieces = list(self._by_variable)
        number = sum(map(len, self._by_variable))
        ids = len(self._store.groups)
        for table in self._tables:
            rows = [(each[ids], each[ids + 1]) for each in given.blocks]
            table.begin(rows, given.count, given.weights)
            self.blocks += table.blocks(self._elements, listed_only=listed_only)
            self._pieces.append(table.pieces(number))
            number += len(self._pieces[-1])
            ids += 2
        self.pieces = [piece for pieces in self._pieces for piece in pieces]

    def _is_of_table(self, block: AnyBlock) -> bool:
        return block.group >= len(self._store.groups)

    def _of(self, block: AnyBlock) -> RowUpdate:
        return self._tables[block.group - len(self._store.groups)]

    # What is done with a block

    def put_aside(self, number: int, block: AnyBlock) -> None:
        """Copy the block and its slots to the place of slice `number`."""
        if isinstance(block, RowBlock):
            self._of(block).copy(block, [*self._aside[number][block.group]])
            return
        length = block.stop - block.start
        for place, array in zip(self._aside[number][block.group], self._arrays[block.group], strict=True):
            place[:length] = array[block.elements]

    def restore(self, number: int, block: AnyBlock) -> None:
        if isinstance(block, RowBlock):
            self._of(block).put_back(block, [*self._aside[number][block.group]])
            return
        length = block.stop - block.start
        for place, array in zip(self._aside[number][block.group], self._arrays[block.group], strict=True):
            array[block.elements] = place[:length]

    def update(self, block: AnyBlock) -> None:
        given, store = self._contributions, self._store
        last = given.version + 1 == store.max_steps
        if self._is_of_table(block):
            factor = self._row_factors[block.group - len(store.groups)] if self._row_factors else 1.0
            self._of(block).update(block, store.optimizer, factor, given.version - store.origin)
            if last:
                self.finalize(block)
            return
        assert isinstance(block, Block), "only tables have blocks of listed rows"
        value, *slots = (array[block.elements] for array in self._arrays[block.group])
        if not store.groups[block.group].trainable:
            blocks = [each[block.group][block.elements] for each in given.blocks]
            one = given.count == 1
            value[...] = blocks[0] if one else mean_of_state(blocks, given.count, given.weights, value)
            return
        mean = self._mean(block)
        if self._limits:
            mean = self._limited(mean, block)
        named = dict(zip(store.slots, slots, strict=True))
        store.optimizer.update(value, mean, named, given.version - store.origin)
        if last:
            store.optimizer.finalize(value, named)

    def finalize(self, block: AnyBlock) -> None:
        """Complete the last version, which has been made. To do so again does no harm."""
        if isinstance(block, RowBlock):
            return  # only moving averages are left, with which every row moves
        if self._is_of_table(block) or self._store.groups[block.group].trainable:
            value, *slots = (array[block.elements] for array in self._arrays[block.group])
            self._store.optimizer.finalize(value, dict(zip(self._store.slots, slots, strict=True)))

    def _mean(self, block: Block) -> Array:
        given = self._contributions
        if given.means is not None:
            return given.means[block.group][block.elements]
        blocks = [each[block.group][block.elements] for each in given.blocks]
        if given.count == 1:
            return blocks[0]
        out = self._scratch[block.group][: block.stop - block.start]
        return mean_of_floats(blocks, given.count, given.weights, out)

    # Limits of norms

    def square(self, piece: Piece) -> None:
        of_table = self._is_of_table(piece)
        self._squares[piece.number] = (
            self._of(piece).square(piece) if of_table else squared_norm_of_piece(self._mean(piece))
        )

    def limit(self, *, limited: bool) -> None:
        """Find the factors by which gradients are multiplied, once all squares are there."""
        self._limits, self._row_factors = [], []
        optimizer = self._store.optimizer
        if not limited:
            return
        squares = [
            sum(self._squares[pieces[0].number : pieces[-1].number + 1].tolist(), 0.0) if pieces else 0.0
            for pieces in self._pieces
        ]
        if optimizer.clipnorm is not None:
            factors = [clip_factor(math.sqrt(each), optimizer.clipnorm) for each in squares]
        else:
            assert optimizer.global_clipnorm is not None
            factor = global_clip_factor(math.sqrt(sum(squares)), optimizer.global_clipnorm)
            factors = [factor] * len(squares)
        dense = len(self._by_variable)
        self._row_factors = factors[dense:]
        for pieces, factor in zip(self._by_variable, factors[:dense], strict=True):
            if pieces and factor != 1.0:
                self._limits.append((Block(pieces[0].group, pieces[0].start, pieces[-1].stop), factor))

    def _limited(self, mean: Array, block: Block) -> Array:
        """Return the mean gradient of a block, limited, in memory of this process."""
        out = self._scratch[block.group][: block.stop - block.start]
        if mean is not out:
            np.copyto(out, mean)
        for variable, factor in self._limits:
            if variable.group == block.group and variable.start < block.stop and block.start < variable.stop:
                common = out[max(variable.start - block.start, 0) : variable.stop - block.start]
                with np.errstate(invalid="ignore"):  # as `clipping.scaled`
                    np.multiply(common, common.dtype.type(factor), out=common)
        return out


def trained_variables(
    groups: Sequence[Group], tables: Sequence[TableInGroup] = ()
) -> list[tuple[int, int, int]]:
    """Return (group, first element, elements) of each trainable variable that is no table."""
    sizes = sizes_without(groups, tables)
    return [
        (index, offset, shard.size)
        for index, group in enumerate(groups)
        if group.trainable
        for shard, offset in zip(group.shards, group.offsets, strict=True)
        if offset < sizes[index]
    ]


def work(board: Board, of_round: int, number: int, blocks: Sequence[AnyBlock], memory: BlockUpdate) -> None:
    """Update the blocks of slice `number` that this round has not updated. The caller then says `fin`."""
    saved, done = board.saved, board.done
    first = count(done[number], of_round)
    lies_aside = count(saved[number], of_round)
    if lies_aside == first + 1:
        memory.restore(number, blocks[first])
    for place in range(first, len(blocks)):
        block = blocks[place]
        if place >= lies_aside:
            memory.put_aside(number, block)
            saved[number] = counted(of_round, place + 1)
        memory.update(block)
        done[number] = counted(of_round, place + 1)
