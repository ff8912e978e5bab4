"""A convolution and the maximum pooling after it, computed together, without the large array in between.

A few examples at a time are convolved and pooled while the processor's cache holds them. `backward` needs
only to know which place of each pooling window was the largest. The convolution's activation function is
applied after the pooling, to a quarter of the values for windows of 2x2: a function that never falls commutes
with a maximum. The numbers are those of the two layers.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from dtrain.learning.core import activations
from dtrain.learning.layers.base import Call, Layer
from dtrain.learning.layers.convolution import Conv1D, Conv2D, add_rows, rows_of
from dtrain.learning.layers.pooling import MaxPooling1D, MaxPooling2D
from dtrain.learning.layers.windows import Windows
from dtrain.types import Array, Arrays

_PART_BYTES = 384 * 1024
"""Size of the array between convolution and pooling, which fits a 1 MiB cache beside the windows."""


class PooledConvolution(Layer):
    """The largest output of a convolution in each window of a pooling; see `pooled`."""

    def __init__(self, convolution: Conv1D | Conv2D, pooling: MaxPooling1D | MaxPooling2D) -> None:
        super().__init__(name=convolution.name)
        self._convolution = convolution
        self._windows = convolution.windows
        self._pool = pooling.windows.size

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Take the maximum over the places of each pooling window, of a matrix product for each place."""
        wide = self._windows.padded(x, 0, call)
        counts = self._counts(wide)
        filters = self._convolution.filters
        y = call.scratch("y", (len(x), *counts, filters))
        largest = call.scratch("largest", y.shape, np.uint8)
        matrix = self._convolution.matrix(weights)
        for part, rows in self._rows(wide, call):
            z = np.matmul(rows, matrix, out=call.scratch("z", (len(rows), filters)))
            by_place = z.reshape(-1, prod(self._pool), *y.shape[1:])
            some = y[part]
            which = largest[part]
            np.copyto(some, by_place[:, 0])
            which.fill(0)
            for place in range(1, by_place.shape[1]):
                here = np.greater(by_place[:, place], some).view(np.uint8)
                here *= place
                np.maximum(which, here, out=which)
                np.maximum(some, by_place[:, place], out=some)
        y, kept = self._convolution.function.apply(y)
        return y, (wide, x.shape, largest, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Set dz to dy at the largest place of each window and 0 elsewhere; the rest is a convolution's."""
        wide, shape, largest, kept = cache
        dy = self._convolution.function.apply_back(kept, dy)
        dwide = call.scratch("dwide", wide.shape if call.needs_input_gradient else ())
        dwide.fill(0)
        matrix = self._convolution.matrix(weights)
        dmatrix = np.zeros_like(matrix)
        for part, rows in self._rows(wide, call):
            dz = call.scratch("z", (len(rows), matrix.shape[1]))
            by_place = dz.reshape(-1, prod(self._pool), *dy.shape[1:])
            for place in range(by_place.shape[1]):
                np.multiply(dy[part], largest[part] == place, out=by_place[:, place])
            dmatrix += rows.T @ dz
            if call.needs_input_gradient:
                drows = np.matmul(dz, matrix.T, out=call.scratch("drows", rows.shape))
                self._add_rows(drows.reshape(*by_place.shape[:-1], -1), dwide[part])
        self._convolution.take_gradients(dmatrix, gradients)
        return self._windows.unpadded(dwide, shape) if call.needs_input_gradient else None

    def _counts(self, wide: Array) -> tuple[int, ...]:
        return tuple(n // p for n, p in zip(self._windows.lengths_within(wide), self._pool, strict=True))

    def _rows(self, wide: Array, call: Call) -> Iterator[tuple[slice, Array]]:
        """Yield the slice of a few examples, and their rows by example, place and pooling window."""
        counts = self._counts(wide)
        rank = len(self._pool)
        gathered = self._windows.gathered(wide)
        gathered = gathered[(slice(None), *(slice(n * p) for n, p in zip(counts, self._pool, strict=True)))]
        split = [length for pair in zip(counts, self._pool, strict=True) for length in pair]
        by_place = gathered.reshape(len(wide), *split, *gathered.shape[rank + 1 :])
        windows = range(1, 2 * rank, 2)
        places = range(2, 2 * rank + 1, 2)
        by_place = by_place.transpose(0, *places, *windows, *range(2 * rank + 1, by_place.ndim))
        example_bytes = 4 * prod(split) * self._convolution.filters
        return rows_of(
            by_place, rank, call, self._convolution.use_bias, max(1, _PART_BYTES // max(1, example_bytes))
        )

    def _add_rows(self, drows: Array, dwide: Array) -> None:
        """Add gradients of windows [examples, places, ...pooling windows, row] to the places read."""
        old = self._windows
        counts = drows.shape[2:-1]
        strides = tuple(s * p for s, p in zip(old.strides, self._pool, strict=True))
        windows: Windows = replace(old, strides=strides)
        for index, place in enumerate(product(*map(range, self._pool))):
            starts = [at * s for at, s in zip(place, old.strides, strict=True)]
            reach = zip(starts, counts, strides, old.extent, strict=True)
            inner = [slice(start, start + (n - 1) * s + e) for start, n, s, e in reach]
            some = drows[:, index]
            add_rows(windows, some.reshape(-1, some.shape[-1]), dwide[(slice(None), *inner)])


def pooled(convolution: Layer, pooling: Layer) -> PooledConvolution | None:
    """Return the layer that computes both, or None if they must be left alone."""
    if not isinstance(convolution, Conv1D | Conv2D) or not isinstance(pooling, MaxPooling1D | MaxPooling2D):
        return None
    plain = convolution.groups == 1 and convolution.function in (activations.relu, activations.linear)
    apart = pooling.windows.padding == "valid" and pooling.windows.strides == pooling.windows.size
    return PooledConvolution(convolution, pooling) if plain and apart else None
