"""The memory of values that others read: on this host in place, over gRPC while they are being sent."""

from collections.abc import Collection, Sequence

import numpy as np

from dtrain.errors import SharedMemoryError
from dtrain.parameters.versions import BufferAllocator
from dtrain.types import Array
from dtrain.wire.channel import Caller
from dtrain.wire.one_host.packets import SMALL_BYTES
from dtrain.wire.one_host.shared_memory import shared_arrays


class ReadBufferAllocator(BufferAllocator):
    """This process's own memory, from which answers are sent."""

    keeps_spares = False

    def __init__(self, callers: Collection[Caller]) -> None:
        self._callers = callers

    def lends(self, values: Sequence[Array]) -> bool:
        """Return True for large values; small ones are copied when they are sent."""
        return sum(value.nbytes for value in values) > SMALL_BYTES

    def in_use(self, values: Sequence[Array]) -> bool:
        return any(caller.reading and caller.reading[0] is values[0] for caller in self._callers)


class SharedBufferAllocator(ReadBufferAllocator):
    """Memory that replicas on this host map, where that pays and there is enough of it."""

    keeps_spares = True  # making shared memory takes longer than a step

    def adopt(self, values: Sequence[Array]) -> list[Array]:
        if not self.lends(values):
            return super().adopt(values)
        taken = self.another(values)
        for place, value in zip(taken, values, strict=True):
            np.copyto(place, value)
        return taken

    def another(self, values: Sequence[Array]) -> list[Array]:
        try:
            return shared_arrays([(value.dtype.name, value.size) for value in values])
        except SharedMemoryError:
            return super().another(values)
