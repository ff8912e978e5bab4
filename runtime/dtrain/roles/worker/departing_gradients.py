"""Gradients that leave layer by layer, the last layer's first, while those of earlier layers are still being
computed.
"""

from collections.abc import Sequence

from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.wire.channel import Channel, Streams
from dtrain.wire.frames import CHUNK_BYTES

EARLY_BYTES = 4 * 1024 * 1024
"""From this size on, of the gradient for a server, its layers leave as soon as they are known.

They leave in chunks of 2 MiB at least. With 8 layers of 4 MB, 2 workers and 2 servers a step takes 0.91 of
the time over links of 1 Gbit/s at batch 512, and 0.87 with late values as well; where two cores do all of the
work, and no link is slow, 1.04.
"""


class DepartingGradients:
    """How much of the gradient under way has been sent to each server: always the end of its first block."""

    def __init__(self, memory: ReplicaMemory) -> None:
        """Nothing has been sent."""
        self._blocks = [blocks[0] if blocks else None for blocks in memory.blocks]
        groups = [layout.groups[:1] for layout in memory.plan.layouts]
        self._shards = [
            [
                (shard.name, offset)
                for group in first
                if group.trainable
                for shard, offset in zip(group.shards, group.offsets, strict=True)
            ]
            for first in groups
        ]
        self.forget()

    def forget(self) -> None:
        """Forget the gradient, which has been sent or never will be."""
        self._complete: set[str] = set()
        self._sent: dict[int, tuple[Channel, int]] = {}

    def complete(self, names: Sequence[str], channels: Sequence[Channel | None]) -> None:
        """Send these variables' gradients, which will not change any more."""
        self._complete.update(names)
        for server, (block, shards) in enumerate(zip(self._blocks, self._shards, strict=True)):
            if block is None or block.nbytes < EARLY_BYTES:
                continue
            channel, stop = self._sent.get(server, (channels[server], block.size))
            start = stop
            for name, offset in reversed(shards):
                if offset < stop and name not in self._complete:
                    break
                start = min(start, offset)
            enough = (stop - start) * block.itemsize >= CHUNK_BYTES
            if enough and channel is channels[server] and isinstance(channel, Streams):
                channel.ahead(block, start, stop)
                self._sent[server] = channel, start

    def ahead(self, server: int, channel: Channel | None) -> int | None:
        """From where on this connection has brought the elements of the server's first block; None: it has
        not.
        """
        sent_on, start = self._sent.get(server, (None, None))
        return start if sent_on is channel else None
