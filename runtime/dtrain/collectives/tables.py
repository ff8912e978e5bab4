"""The tables among the variables of replicas that share memory: each lies at the end of its group.

The gradient of such a table is given as rows, so that memory of gradients has no place for it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dtrain.parameters.placement import Group
from dtrain.types import Array


@dataclass(frozen=True, slots=True)
class TableInGroup:
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
        """The same as a slice of the array."""
        return slice(self.start, self.stop)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return (self.stop - self.start) // self.width

    @property
    def row_nbytes(self) -> int:
        """The size of a row."""
        return self.width * np.dtype(self.dtype).itemsize


def are_rows(ids: Array, rows: int, after: int = -1) -> bool:
    """Return whether ids ascend, each once, from behind one of them to the last of so many rows."""
    return not ids.size or bool(ids[0] > after and ids[-1] < rows and np.all(ids[1:] > ids[:-1]))


def tables_in(groups: Sequence[Group], names: Collection[str]) -> tuple[TableInGroup, ...]:
    """Return the tables of these names in the order of the groups."""
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
