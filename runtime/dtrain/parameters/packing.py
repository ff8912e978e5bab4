"""What a replica sends and is sent: the blocks of its memory as they travel."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dtrain.messages.verdict import Verdict
from dtrain.parameters.compression import Compression
from dtrain.parameters.largest_elements import LargestElements
from dtrain.parameters.replica_memory import ReplicaMemory

Array = np.ndarray[Any, Any]
Blocks = Sequence[Array]


class Packing:
    """Without compression: as they lie.

    Attributes:
        offered: for each server, the arrays that its values are best received into.
        in_place: whether they are used there.
    """

    def __init__(self, weights: ReplicaMemory, gradients: ReplicaMemory) -> None:
        self._weights = weights
        self._gradients = gradients
        self.offered = weights.blocks
        self.in_place = not weights.splits

    def pack(self, rows: Sequence[Blocks], term: int) -> Sequence[Blocks]:
        """The blocks of a push for each server: of the gradients in memory, then these blocks of its tables,
        if there are any.
        """
        return (
            [[*dense, *more] for dense, more in zip(self._gradients.blocks, rows, strict=True)]
            if rows
            else self._gradients.blocks
        )

    def judged(self, server: int, verdict: Verdict) -> None:
        """What became of the last push there."""

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        """A server's values, as the blocks of `ReplicaMemory`; of another model's, anything."""
        return blocks

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        """Rows of a table that has this dtype."""
        return rows


class CompressedPacking(Packing):
    """With compression. The gradient is seen as a whole, so that nothing depends on which server has what."""

    def __init__(
        self,
        compression: Compression,
        weights: ReplicaMemory,
        gradients: ReplicaMemory,
        arrays: Callable[[Sequence[tuple[str, int]]], list[Array]],
    ) -> None:
        """Make room; `arrays` makes arrays that are sent again and again."""
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
        self._term = 0
        self._largest: LargestElements | None = None
        if compression.fraction is None:
            self._narrow, self._scale = arrays([(self._half.dtype, self._numbers.size), ("float32", 1)])
        else:
            self._largest = LargestElements(compression.fraction, self._numbers.size)

    def pack(self, rows: Sequence[Blocks], term: int) -> Sequence[Blocks]:
        """See `Packing.pack`. What was kept of the gradients of an earlier term is forgotten."""
        if self._largest is not None and term != self._term:
            self._largest.forget()
        self._term = term
        scale = self._scale_for(rows) if self._compression.gradients_scaled else 1.0
        head = [self._scale] if self._compression.gradients_scaled else []
        packed = []
        for server, numbers in enumerate(self._pack_numbers(scale)):
            blocks = list(head)
            for group, block in zip(
                self._layouts[server].groups, self._gradients.blocks[server], strict=True
            ):
                blocks += numbers if self._compression.applies_to(group) else [block]
            more = rows[server] if rows else ()
            blocks += [
                self._half.narrow(each, scale=scale) if each.dtype == np.float32 else each for each in more
            ]
            packed.append(blocks)
        return packed

    def _scale_for(self, rows: Sequence[Blocks]) -> float:
        """One for all servers."""
        blocks = [self._numbers, *(each for blocks in rows for each in blocks if each.dtype == np.float32)]
        largest = max(float(max(each.max(initial=0), -each.min(initial=0))) for each in blocks)
        self._scale[0] = self._half.scale_for(largest)
        return float(self._scale[0])

    def _pack_numbers(self, scale: float) -> list[list[Array]]:
        """For each server, what travels in place of its float32 block."""
        if self._largest is None:
            self._half.narrow(self._numbers, self._narrow, scale)
            return [[self._narrow[part]] for part in self._parts]
        places, values = self._largest.pick(self._numbers)
        cuts = np.searchsorted(places, [part.stop for part in self._parts], "left").tolist()
        pieces = [slice(first, last) for first, last in pairwise([0, *cuts])]
        return [
            [(places[piece] - part.start).astype(np.uint32), values[piece]]
            for piece, part in zip(pieces, self._parts, strict=True)
        ]

    def judged(self, server: int, verdict: Verdict) -> None:
        """See `Packing.judged`."""
        if self._largest is not None and verdict in (Verdict.ACCEPTED, Verdict.PENDING):
            self._largest.applied(self._parts[server])

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        """See `Packing.unpack`; they may have come whole."""
        if _kinds(blocks) != _kinds(self.offered[server]) or _kinds(blocks) == _kinds(
            self._weights.blocks[server]
        ):
            return blocks
        self._compression.restore_values(self._layouts[server], blocks, self._weights.blocks[server])
        return self._weights.blocks[server]

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        """See `Packing.unpack_rows`; they may have come whole."""
        return rows if rows.dtype.name == dtype else self._half.widen(rows)


def _kinds(blocks: Blocks) -> list[tuple[np.dtype[Any], int]]:
    return [(block.dtype, block.size) for block in blocks]
