"""Where a server keeps the values that others read: on this host where they lie, over gRPC while they are
being sent.
"""

from collections.abc import Collection, Sequence

import numpy as np

from dtrain.errors import SharedMemoryError
from dtrain.parameters.published import Array, Room
from dtrain.wire.channel import Caller
from dtrain.wire.packets import SMALL_BYTES
from dtrain.wire.shared_memory import shared_arrays


class ReadRoom(Room):
    """This process's own memory, of which answers are cut."""

    keeps_spares = False

    def __init__(self, callers: Collection[Caller]) -> None:
        """`callers` are all connections that are open."""
        self._callers = callers

    def lends(self, values: Sequence[Array]) -> bool:
        """See `Room.lends`: what is small is copied when it is sent."""
        return sum(value.nbytes for value in values) > SMALL_BYTES

    def in_use(self, values: Sequence[Array]) -> bool:
        """See `Room.in_use`."""
        return any(caller.reading and caller.reading[0] is values[0] for caller in self._callers)


class SharedRoom(ReadRoom):
    """Memory that replicas on this host map, where that pays and there is enough of it."""

    keeps_spares = True  # making it costs more than a step

    def take(self, values: Sequence[Array]) -> list[Array]:
        """See `Room.take`."""
        if not self.lends(values):
            return super().take(values)
        taken = self.another(values)
        for place, value in zip(taken, values, strict=True):
            np.copyto(place, value)
        return taken

    def another(self, values: Sequence[Array]) -> list[Array]:
        """See `Room.another`."""
        try:
            return shared_arrays([(value.dtype.name, value.size) for value in values])
        except SharedMemoryError:
            return super().another(values)
