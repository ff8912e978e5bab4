"""Windows that slide over the inner axes of a batch [batch, ...lengths, channels].

Convolution and pooling share them. Padding is TensorFlow's: ``same`` pads so that the output has ceil(length
/ stride) places, the odd one at the end; ``causal`` (one axis only) pads in front alone. There may be any
number of sliding axes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call, Layer
from dtrain.types import Array, Shape

Lengths: TypeAlias = int | Sequence[int]
"""One length for all sliding axes, or one for each."""

PADDINGS = ("valid", "same", "causal")


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry of sliding windows: one number a sliding axis in each attribute."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: str = "valid"

    @classmethod
    def of(
        cls, rank: int, where: str, size: Lengths, strides: Lengths, padding: str, dilation: Lengths = 1
    ) -> "Windows":
        """Raise a `SpecError` that names the layer `where` for wrong arguments."""
        allowed = PADDINGS if rank == 1 else PADDINGS[:2]
        if padding.lower() not in allowed:
            raise SpecError(f"{where}: padding: expected one of {', '.join(allowed)}, found {padding!r}")
        return cls(
            size=_spread(rank, where, "size", size),
            strides=_spread(rank, where, "strides", strides),
            dilation=_spread(rank, where, "dilation", dilation),
            padding=padding.lower(),
        )

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))

    @property
    def overlap(self) -> bool:
        """True if a place may belong to more than one window."""
        return any(e > s for e, s in zip(self.extent, self.strides, strict=True))

    def output_lengths(self, lengths: Shape) -> Shape:
        """Return the number of windows along each axis, below 1 if the input is too short."""
        return tuple(
            None if n is None else -(-n // s) if self.padding != "valid" else (n - e) // s + 1
            for n, e, s in zip(lengths, self.extent, self.strides, strict=True)
        )

    def margins(self, lengths: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return the extent (before, after) of ``same`` or ``causal`` padding along each axis."""
        if self.padding == "valid":
            return [(0, 0)] * len(lengths)
        if self.padding == "causal":
            return [(e - 1, 0) for e in self.extent]
        totals = [
            max(0, (-(-n // s) - 1) * s + e - n)
            for n, e, s in zip(lengths, self.extent, self.strides, strict=True)
        ]
        return [(total // 2, total - total // 2) for total in totals]

    def padded(self, x: Array, value: float, call: Call) -> Array:
        """Return `x` itself if there are no margins."""
        margins = self.margins(x.shape[1:-1])
        if not any(map(any, margins)):
            return x
        lengths = [n + sum(margin) for n, margin in zip(x.shape[1:-1], margins, strict=True)]
        wide = call.scratch("padded", (len(x), *lengths, x.shape[-1]))
        wide.fill(value)
        self.unpadded(wide, x.shape)[...] = x
        return wide

    def unpadded(self, wide: Array, shape: tuple[int, ...]) -> Array:
        margins = self.margins(shape[1:-1])
        inner = (slice(before, before + n) for (before, _), n in zip(margins, shape[1:-1], strict=True))
        return wide[(slice(None), *inner)]

    def gathered(self, wide: Array) -> Array:
        """Return all windows: a read-only view [batch, ...windows, ...places in a window, channels]."""
        rank = len(self.size)
        axes = tuple(range(1, rank + 1))
        view = np.lib.stride_tricks.sliding_window_view(wide, self.extent, axes)
        steps = [slice(None, None, s) for s in self.strides]
        places = [slice(None, None, d) for d in self.dilation]
        return np.moveaxis(view[(slice(None), *steps, slice(None), *places)], rank + 1, -1)

    def lengths_within(self, wide: Array) -> tuple[int, ...]:
        return tuple(
            (n - e) // s + 1 for n, e, s in zip(wide.shape[1:-1], self.extent, self.strides, strict=True)
        )

    def places(self, wide: Array) -> Iterator[Array]:
        """Yield for each place in a window, row by row, its view [batch, ...windows, channels]."""
        lengths = self.lengths_within(wide)
        for place in product(*map(range, self.size)):
            starts = [p * d for p, d in zip(place, self.dilation, strict=True)]
            inner = [
                slice(b, b + (n - 1) * s + 1, s)
                for b, n, s in zip(starts, lengths, self.strides, strict=True)
            ]
            yield wide[(slice(None), *inner)]


def _spread(rank: int, where: str, name: str, given: Lengths) -> tuple[int, ...]:
    lengths = (given,) * rank if isinstance(given, int) else tuple(given)
    if len(lengths) != rank or not all(isinstance(n, int) and n > 0 for n in lengths):
        raise SpecError(f"{where}: {name}: expected a positive integer or {rank} of them, found {given!r}")
    return lengths


def require_channels_last(label: str, data_format: str | None) -> None:
    if data_format not in (None, "channels_last"):
        raise SpecError(f"{label}: data_format: expected channels_last, found {data_format!r}")


def window_counts(layer: Layer, windows: Windows, input_shape: Shape) -> Shape:
    """Raise an `InputError` if there is no window along an axis."""
    rank = len(windows.size)
    layer.expect(
        len(input_shape) == rank + 1, f"{rank + 2} axes: batch, {rank} to slide over, channels", input_shape
    )
    lengths = windows.output_lengths(input_shape[:-1])
    layer.expect(
        all(n is None or n > 0 for n in lengths),
        f"an input as long as its windows {windows.extent}",
        input_shape,
    )
    return lengths
