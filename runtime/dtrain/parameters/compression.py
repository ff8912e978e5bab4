"""The blocks of a replica's memory in the form in which they travel: `training.compression`, for both ends.

Blocks of a server are `[server][block]`, flat arrays in the order of its layout's groups. The rule
*Compression* (docs/design/protocol.md#compression):

1. Only float32 of trained variables is compressed; anything else travels as it is. Servers hold, add up and
   save float32.
2. bf16, fp16: every number in 16 bits, both ways. For fp16 the gradient is multiplied by a power of two, so
   that its largest number comes near the end of the range: none overflows, and few are too small.
3. top_k: of a gradient only the largest elements, as places and float32 (`LargestElements`); values as in
   bf16.
4. Rows of tables travel in 16 bits, too.
5. Values that are read to be kept are whole: the last version, and those that the leader pulls or looks up.
6. The result does not depend on the server that has a number: it is the same for any placement and transport.

A push of an array of n elements is, in its place among the blocks:

    bf16, fp16    n numbers of 16 bits; for fp16 the scale, one float32, stands before the first block
    top_k         k places, uint32; k float32

Elements that top_k does not send are added to the next gradient (Seide et al. 2014; Stich et al. 2018,
arXiv:1809.07599), so that everything arrives in the end: applied + kept = the sum of the gradients that
count. A gradient that is not applied (too late, refused, of a term that is over) changes nothing that is
kept, as it changes no variable. A replica that is started again keeps nothing, and neither does one whose
servers went back to a checkpoint.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

from dtrain.config.choices import NumberFormat
from dtrain.errors import InputError
from dtrain.parameters.placement import Group, ServerLayout, Shard
from dtrain.parameters.replica_memory import Packing, ReplicaMemory
from dtrain.parameters.versions import BufferAllocator, VersionedBuffers
from dtrain.types import Array, Blocks


class HalfPrecision:
    """One of the two forms.

    Attributes:
        scales: whether the range is so narrow that gradients are scaled into it; see `scale_for`.
    """

    def __init__(self, kind: NumberFormat) -> None:
        import ml_dtypes  # imported only where numbers are compressed

        self._dtype: Any = np.dtype(ml_dtypes.bfloat16 if kind == NumberFormat.BF16 else np.float16)
        self.dtype = "uint16" if kind == NumberFormat.BF16 else "float16"
        self.scales = kind == NumberFormat.FP16

    def scale_for(self, largest: float) -> float:
        """Return the power of two that brings a magnitude to 16384 to 32768; 1.0 if this form needs none."""
        exponent = int(np.frexp(largest)[1]) if self.scales and 0 < largest < np.inf else 15
        return 2.0 ** min(15 - exponent, 126)

    def narrow(self, block: Array, out: Array | None = None, scale: float = 1.0) -> Array:
        """Convert float32 to `dtype`, multiplied by `scale`; numbers beyond the range become infinity."""
        out = np.empty(block.size, self.dtype) if out is None else out
        with np.errstate(over="ignore", invalid="ignore"):
            out.view(self._dtype)[...] = block if scale == 1 else block * np.float32(scale)
        return out

    def widen(self, block: Array, out: Array | None = None, scale: float = 1.0) -> Array:
        out = np.empty(block.size, np.float32) if out is None else out
        out[...] = block.view(self._dtype)
        if scale != 1:
            out /= np.float32(scale)
        return out


class Compression(msgspec.Struct, frozen=True):
    """The form in which numbers travel."""

    half: HalfPrecision

    @classmethod
    def of(cls, config: NumberFormat) -> "Compression | None":
        return None if config == NumberFormat.NONE else cls(HalfPrecision(config))

    def applies_to(self, numbers: Group | Shard) -> bool:
        return numbers.trainable and numbers.dtype == "float32"

    def value_kinds(self, layout: ServerLayout) -> list[tuple[str, int]]:
        return [
            (self.half.dtype if self.applies_to(group) else group.dtype, group.size)
            for group in layout.groups
        ]

    def compress_values(self, layout: ServerLayout, values: Blocks, out: Blocks) -> None:
        for group, block, place in zip(layout.groups, values, out, strict=True):
            if self.applies_to(group):
                self.half.narrow(block, place)
            else:
                place[...] = block

    def restore_values(self, layout: ServerLayout, blocks: Blocks, out: Blocks) -> None:
        for group, block, place in zip(layout.groups, blocks, out, strict=True):
            if self.applies_to(group):
                self.half.widen(block, place)
            else:
                place[...] = block

    def restore_push(self, layout: ServerLayout, blocks: Blocks) -> list[Array]:
        """Return a push's blocks without compression; raise an `InputError` if they are no push."""
        left = iter(blocks)
        try:
            scale = _scale(next(left)) if self.half.scales else 1.0
            restored = [self._restored(group, next(left), scale) for group in layout.groups]
            for shard in layout.tables:
                if shard.trainable:
                    restored += [next(left), self._restored(shard, next(left), scale)]
        except StopIteration:
            raise InputError(f"{len(blocks)} blocks are too few for a compressed gradient") from None
        return [*restored, *left]

    def _restored(self, numbers: Group | Shard, block: Array, scale: float) -> Array:
        if not self.applies_to(numbers):
            return block
        if block.dtype.name != self.half.dtype:
            raise InputError(
                f"expected numbers of 16 bits ({self.half.dtype}), found {block.dtype.name}: is compression "
                "the same for all tasks?"
            )
        return self.half.widen(block, scale=scale)


class CompressedValues:
    """A server's compressed values: the newest version asked for, and older ones while they are read."""

    def __init__(self, compression: Compression, layout: ServerLayout, allocator: BufferAllocator) -> None:
        self._compression = compression
        self._layout = layout
        kinds = compression.value_kinds(layout)
        self._versions = VersionedBuffers([np.empty(size, dtype) for dtype, size in kinds], allocator)
        self._made_of = 0

    def of(self, values: VersionedBuffers) -> list[Array]:
        if self._made_of != values.number:
            place = self._versions.next_place()
            self._compression.compress_values(self._layout, values.newest, place)
            self._versions.publish(place)
            self._made_of = values.number
        return self._versions.newest

    def disconnected(self, reading: Sequence[Array]) -> None:
        self._versions.disconnected(reading)


def _scale(block: Array) -> float:
    if block.dtype != np.float32 or block.size != 1 or not 0 < block[0] < np.inf:
        raise InputError("expected the scale of a gradient, one positive number, before its blocks")
    return float(block[0])


class CompressedPacking(Packing):
    """Compressed blocks. The gradient is compressed as a whole, so that placement changes nothing."""

    def __init__(
        self,
        compression: Compression,
        weights: ReplicaMemory,
        gradients: ReplicaMemory,
        arrays: Callable[[Sequence[tuple[str, int]]], list[Array]],
    ) -> None:
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
        blocks = [self._numbers, *(each for blocks in rows for each in blocks if each.dtype == np.float32)]
        largest = max(float(max(each.max(initial=0), -each.min(initial=0))) for each in blocks)
        self._scale[0] = self._half.scale_for(largest)
        return float(self._scale[0])

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        if _kinds(blocks) != _kinds(self.offered[server]) or _kinds(blocks) == _kinds(
            self._weights.blocks[server]
        ):
            return blocks
        self._compression.restore_values(self._layouts[server], blocks, self._weights.blocks[server])
        return self._weights.blocks[server]

    def row_dtypes(self, dtype: str) -> tuple[str, ...]:
        return (dtype, self._half.dtype) if dtype == "float32" else (dtype,)

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        return rows if rows.dtype.name == dtype else self._half.widen(rows)


def _kinds(blocks: Blocks) -> list[tuple[np.dtype[Any], int]]:
    return [(block.dtype, block.size) for block in blocks]
