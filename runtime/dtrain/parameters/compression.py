"""Fewer bytes on the wire: `training.compression`, for both ends of a connection.

The rule *Compression* (docs/design/protocol.md#compression):

1. Only float32 of trained variables is compressed; anything else travels as it is. Servers hold, add up and
   save float32.
2. bf16, fp16: every number in 16 bits, both ways. For fp16 the gradient is multiplied by a power of two, so
   that its largest number comes near the end of the range: none overflows, and few are too small.
3. Rows of tables travel in 16 bits, too.
4. Values that are read to be kept are whole: the last version, and those that the leader pulls or looks up.
5. The result does not depend on the server that has a number: it is the same for any placement and transport.

A push of an array of n elements is, in its place among the blocks, n numbers of 16 bits; for fp16 the scale,
one float32, stands before the first block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtrain.config.choices import NumberFormat
from dtrain.errors import InputError
from dtrain.parameters.half_precision import HalfPrecision
from dtrain.parameters.placement import Group, ServerLayout, Shard
from dtrain.parameters.versioned_buffers import BufferAllocator, VersionedBuffers
from dtrain.types import Array, Blocks


@dataclass(frozen=True)
class Compression:
    """The form in which numbers travel.

    Attributes:
        half: of values and of gradients.
    """

    half: HalfPrecision

    @classmethod
    def of(cls, config: NumberFormat) -> "Compression | None":
        """Return the compression of a spec's `training.compression`; None for ``none``."""
        return None if config == NumberFormat.NONE else cls(HalfPrecision(config))

    def applies_to(self, numbers: Group | Shard) -> bool:
        """Return whether these numbers are compressed."""
        return numbers.trainable and numbers.dtype == "float32"

    def value_kinds(self, layout: ServerLayout) -> list[tuple[str, int]]:
        """Return (dtype, elements) of the blocks in which a server's values travel."""
        return [
            (self.half.dtype if self.applies_to(group) else group.dtype, group.size)
            for group in layout.groups
        ]

    def compress_values(self, layout: ServerLayout, values: Blocks, out: Blocks) -> None:
        """Compress a server's values into blocks of `value_kinds`."""
        for group, block, place in zip(layout.groups, values, out, strict=True):
            if self.applies_to(group):
                self.half.narrow(block, place)
            else:
                place[...] = block

    def restore_values(self, layout: ServerLayout, blocks: Blocks, out: Blocks) -> None:
        """Restore a server's values from blocks of `value_kinds`."""
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
            restored = [
                self._widened(next(left), scale) if self.applies_to(group) else next(left)
                for group in layout.groups
            ]
            for shard in layout.tables:
                if shard.trainable:
                    restored.append(next(left))
                    restored.append(
                        self._widened(next(left), scale) if self.applies_to(shard) else next(left)
                    )
        except StopIteration:
            raise InputError(f"{len(blocks)} blocks are too few for a compressed gradient") from None
        return [*restored, *left]

    def _widened(self, block: Array, scale: float) -> Array:
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
        """Return the newest of these, compressed."""
        if self._made_of != values.number:
            place = self._versions.next_place()
            self._compression.compress_values(self._layout, values.newest, place)
            self._versions.publish(place)
            self._made_of = values.number
        return self._versions.newest

    def lose(self, values: Sequence[Array]) -> None:
        """Drop these buffers; see `VersionedBuffers.lose`."""
        self._versions.lose(values)


def _scale(block: Array) -> float:
    if block.dtype != np.float32 or block.size != 1 or not 0 < block[0] < np.inf:
        raise InputError("expected the scale of a gradient, one positive number, before its blocks")
    return float(block[0])
