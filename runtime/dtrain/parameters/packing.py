"""The blocks of a replica's memory in the form in which they travel.

Blocks of a server are `[server][block]`, flat arrays in the order of its layout's groups.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dtrain.parameters.compression import Compression
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.types import Array, Blocks


class Packing:
    """Blocks as they lie in memory, without compression.

    Attributes:
        offered: `[server][block]`, arrays into which a server's values are best received; here views of the
            replica's memory of weights, with compression arrays of this object's own.
        in_place: True if values that are received there need not be copied.
    """

    def __init__(self, weights: ReplicaMemory, gradients: ReplicaMemory) -> None:
        self._weights = weights
        self._gradients = gradients
        self.offered = weights.blocks
        self.in_place = not weights.splits

    def pack(self, rows: Sequence[Blocks]) -> Sequence[Blocks]:
        """Return `[server][block]`, the blocks of a push: views of the gradients in memory, then `rows`.

        They may not be written until the push is answered.
        """
        return (
            [[*dense, *more] for dense, more in zip(self._gradients.blocks, rows, strict=True)]
            if rows
            else self._gradients.blocks
        )

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        """Return a server's values as blocks of `ReplicaMemory`; those of another model as they came."""
        return blocks

    def row_dtypes(self, dtype: str) -> tuple[str, ...]:
        """Return the dtypes in which rows of a table of this dtype may come."""
        return (dtype,)

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        """Return rows of a table, flat, in its dtype."""
        return rows


class CompressedPacking(Packing):
    """Compressed blocks. The gradient is compressed as a whole, so that placement changes nothing."""

    def __init__(
        self,
        compression: Compression,
        weights: ReplicaMemory,
        gradients: ReplicaMemory,
        arrays: Callable[[Sequence[tuple[str, int]]], list[Array]],
    ) -> None:
        """Allocate; `arrays` makes arrays that are sent again and again."""
        super().__init__(weights, gradients)
        self._compression = compression
        self._half = compression.half
        self._layouts = gradients.plan.layouts
        self._numbers = gradients.buffers.get(("float32", True), np.zeros(0, np.float32))
        sizes = [
            sum(group.size for group in layout.groups if compression.applies_to(group))
            for layout in self._layouts
        ]
        self._parts = [slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]
        self.offered = [
            [np.empty(size, dtype) for dtype, size in compression.value_kinds(layout)]
            for layout in self._layouts
        ]
        self.in_place = False
        self._narrow, self._scale = arrays([(self._half.dtype, self._numbers.size), ("float32", 1)])

    def pack(self, rows: Sequence[Blocks]) -> Sequence[Blocks]:
        """Return the blocks of a push in 16 bits, behind their scale where the format has one."""
        scale = self._scale_for(rows) if self._half.scales else 1.0
        head = [self._scale] if self._half.scales else []
        self._half.narrow(self._numbers, self._narrow, scale)
        packed = []
        for server, part in enumerate(self._parts):
            numbers = self._narrow[part]
            blocks = list(head)
            for group, block in zip(
                self._layouts[server].groups, self._gradients.blocks[server], strict=True
            ):
                blocks.append(numbers if self._compression.applies_to(group) else block)
            more = rows[server] if rows else ()
            blocks += [
                self._half.narrow(each, scale=scale) if each.dtype == np.float32 else each for each in more
            ]
            packed.append(blocks)
        return packed

    def _scale_for(self, rows: Sequence[Blocks]) -> float:
        """Return one scale for all servers."""
        blocks = [self._numbers, *(each for blocks in rows for each in blocks if each.dtype == np.float32)]
        largest = max(float(max(each.max(initial=0), -each.min(initial=0))) for each in blocks)
        self._scale[0] = self._half.scale_for(largest)
        return float(self._scale[0])

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        """Return a server's values as blocks of `ReplicaMemory`, whether they came compressed or whole."""
        if _kinds(blocks) != _kinds(self.offered[server]) or _kinds(blocks) == _kinds(
            self._weights.blocks[server]
        ):
            return blocks
        self._compression.restore_values(self._layouts[server], blocks, self._weights.blocks[server])
        return self._weights.blocks[server]

    def row_dtypes(self, dtype: str) -> tuple[str, ...]:
        """Return the dtypes of rows, whole or compressed."""
        return (dtype, self._half.dtype) if dtype == "float32" else (dtype,)

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        """Return rows of a table, whether they came compressed or whole."""
        return rows if rows.dtype.name == dtype else self._half.widen(rows)


def _kinds(blocks: Blocks) -> list[tuple[np.dtype[Any], int]]:
    return [(block.dtype, block.size) for block in blocks]
