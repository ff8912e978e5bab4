"""The update of one block of the variables that several replicas hold together, in place.

A replica updates its slice of every variable, block by block, in memory that all replicas map. What a block's
update changes can be put aside before, and restored where the process that changed it has died in its midst
(docs/design/collectives.md#put-aside). The numbers are those of `means.mean` and `Store.apply`. Tables of
which gradients list rows are updated by `row_update`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dtrain.collectives.row_update import AnyBlock, RowBlock, RowUpdate
from dtrain.collectives.slices import Block, Piece, blocks_of, pieces_of
from dtrain.collectives.tables import TableInGroup, sizes_without
from dtrain.learning.core.clipping import (
    PIECE_ELEMENTS,
    clip_factor,
    global_clip_factor,
    squared_norm_of_piece,
)
from dtrain.parameters.means import mean_of_floats, mean_of_state
from dtrain.parameters.placement import Group
from dtrain.parameters.store import Store
from dtrain.types import Array, Blocks


@dataclass(frozen=True)
class Contributions:
    """The gradients that make one version.

    Attributes:
        blocks: `[contribution][block]`, flat, in the order of their parts: each group up to its tables, then
            ids and rows of each trainable table.
        count: the divisor of the mean: as many, and the parts without examples.
        weights: numbers of examples, where the mean is weighted by them.
        version: the one that is updated.
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
        """Return the contributions of a step, of which `empty` parts had no examples; see `means.mean`."""
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
            store: of the variables and slots.
            aside: `[slice]`, of `nbytes_aside` bytes each.
            squares: float64, one for each piece.
            elements: of a block at most, and of a row.
            tables: of which gradients list rows.
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
        """Return the table that a block belongs to."""
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
        """Copy them back."""
        if isinstance(block, RowBlock):
            self._of(block).put_back(block, [*self._aside[number][block.group]])
            return
        length = block.stop - block.start
        for place, array in zip(self._aside[number][block.group], self._arrays[block.group], strict=True):
            array[block.elements] = place[:length]

    def update(self, block: AnyBlock) -> None:
        """Make the next version of the block."""
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
        """Add up the squares of a piece of the mean gradient."""
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
    """Return (group, first element there, elements) of each trainable variable that is no table."""
    sizes = sizes_without(groups, tables)
    return [
        (index, offset, shard.size)
        for index, group in enumerate(groups)
        if group.trainable
        for shard, offset in zip(group.shards, group.offsets, strict=True)
        if offset < sizes[index]
    ]
