"""The cut of flat arrays into blocks and slices, and the tables at the end of groups of variables.

The rule *Blocks* (docs/design/collectives.md#blocks): the grid of blocks does not depend on the number of
slices, so that what is computed block by block has the same bits for any number of replicas.

The gradient of such a table is given as rows, so that memory of gradients has no place for it.
"""

from collections.abc import Collection, Sequence
from itertools import count
from math import prod

import msgspec
import numpy as np

from dtrain.parameters.placement import Group
from dtrain.types import Array

BLOCK_ELEMENTS = 1 << 16
"""Elements of a block, put aside and updated while it is in the cache (fastest of 2^14 to 2^16)."""


class Block(msgspec.Struct, frozen=True):
    """Elements `start` to `stop` of the flat array of one group."""

    group: int
    start: int
    stop: int

    @property
    def elements(self) -> slice:
        return slice(self.start, self.stop)


def blocks_of(sizes: Sequence[int], elements: int) -> tuple[Block, ...]:
    return tuple(
        Block(group, start, min(start + elements, size))
        for group, size in enumerate(sizes)
        for start in range(0, size, elements)
    )


def share(blocks: int, slices: int, number: int) -> range:
    """Return which of so many blocks make up slice `number` of `slices`."""
    return range(blocks * number // slices, blocks * (number + 1) // slices)


class Piece(Block, frozen=True):
    """Neighbours within one variable, whose squares are added up in one call."""

    number: int


def pieces_of(variables: Sequence[tuple[int, int, int]], elements: int) -> list[list[Piece]]:
    """Return the pieces of each variable: its group, its first element there, and its number of elements."""
    numbers = count()
    return [
        [
            Piece(group, start, min(start + elements, first + size), next(numbers))
            for start in range(first, first + size, elements)
        ]
        for group, first, size in variables
    ]


class TableInGroup(msgspec.Struct, frozen=True):
    """Elements `start` to `stop` of the flat array of one group, which are rows of `width` elements."""

    name: str
    group: int
    start: int
    stop: int
    width: int
    dtype: str
    trainable: bool

    @property
    def elements(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def rows(self) -> int:
        return (self.stop - self.start) // self.width

    @property
    def row_nbytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


def are_rows(ids: Array, rows: int, after: int = -1) -> bool:
    """Return whether ids ascend strictly and are rows of a table of so many."""
    return not ids.size or bool(ids[0] > after and ids[-1] < rows and np.all(ids[1:] > ids[:-1]))


def tables_in(groups: Sequence[Group], names: Collection[str]) -> tuple[TableInGroup, ...]:
    return tuple(
        TableInGroup(
            shard.name, index, first, first + shard.size, prod(shard.shape[1:]), group.dtype, group.trainable
        )
        for index, group in enumerate(groups)
        for shard, first in zip(group.shards, group.offsets, strict=True)
        if shard.name in names
    )


def sizes_without(groups: Sequence[Group], tables: Sequence[TableInGroup]) -> list[int]:
    """Return how many elements of each group come before its tables."""
    return [
        min((table.start for table in tables if table.group == index), default=group.size)
        for index, group in enumerate(groups)
    ]
