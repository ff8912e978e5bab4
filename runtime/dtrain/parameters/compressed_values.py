"""A server's compressed values for replicas, made when they are asked for, once a version."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.parameters.compression import Compression
from dtrain.parameters.placement import ServerLayout
from dtrain.parameters.published import Published, Room

Array = np.ndarray[Any, Any]


class CompressedValues:
    """The newest version that was asked for, and older ones while they are read."""

    def __init__(self, compression: Compression, layout: ServerLayout, room: Room) -> None:
        self._compression = compression
        self._layout = layout
        kinds = compression.value_kinds(layout)
        self._published = Published([np.empty(size, dtype) for dtype, size in kinds], room)
        self._made_of = 0

    def of(self, values: Published) -> list[Array]:
        """Return the newest of these, compressed."""
        if self._made_of != values.number:
            place = self._published.next_place()
            self._compression.compress_values(self._layout, values.newest, place)
            self._published.publish(place)
            self._made_of = values.number
        return self._published.newest

    def lose(self, values: Sequence[Array]) -> None:
        """Drop these buffers; see `Published.lose`."""
        self._published.lose(values)
