"""The cut of flat arrays into blocks, and of the blocks into slices, one for each replica.

The rule *Blocks* (docs/design/collectives.md#blocks): the grid of blocks does not depend on the number of
slices, so that what is computed block by block has the same bits for any number of replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

BLOCK_ELEMENTS = 1 << 16
"""Elements of a block, put aside and updated while it is in the cache (fastest of 2^14 to 2^16)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements `start` to `stop` of the flat array of one group."""

    group: int
    start: int
    stop: int

    @property
    def elements(self) -> slice:
        """The same as a slice of the array."""
        return slice(self.start, self.stop)


def blocks_of(sizes: Sequence[int], elements: int) -> tuple[Block, ...]:
    """Return the blocks of groups of these sizes, in order."""
    return tuple(
        Block(group, start, min(start + elements, size))
        for group, size in enumerate(sizes)
        for start in range(0, size, elements)
    )


def share(blocks: int, slices: int, number: int) -> range:
    """Return which of so many blocks make up slice `number` of `slices`."""
    return range(blocks * number // slices, blocks * (number + 1) // slices)


@dataclass(frozen=True, slots=True)
class Piece(Block):
    """Neighbours within one variable, whose squares are added up in one call; pieces count from 0."""

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
