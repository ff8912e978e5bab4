"""Writes what the servers hold into the folder of checkpoints. Rule 11."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import Streamed
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError
from dtrain.lazy_table import row_blocks
from dtrain.messages import Lineage, Snapshot, SnapshotReply, SnapshotRows
from dtrain.protocol.placement import Shard
from dtrain.roles.chief import Cut
from dtrain.roles.generation import Generation
from dtrain.roles.start import Start
from dtrain.roles.table import VALUES
from dtrain.variables import DTYPE_BYTES
from dtrain.wire.frames import Frame

CUT_ATTEMPTS = 10

Array = np.ndarray[Any, Any]


class Holder(Protocol):
    """Whoever can say what all servers hold."""

    def snapshot(self, cut: Cut, question: Snapshot) -> list[Frame]:
        """One answer a server: `SnapshotReply` with its blocks."""

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        """Rows of a table at the last snapshot, flat."""


class Saver:
    """Saves one generation.

    Attributes:
        generation: what is saved.
        until: no version is made beyond this one before the leader allows it; None: there is no such limit.
        step: says the newest global step.
        lineage: of the present term; written into every checkpoint.
        whole: whether the last one is one cut through all servers.
    """

    def __init__(
        self,
        holder: Holder,
        generation: Generation,
        section: CheckpointSection,
        directory: Path,
        step: Callable[[], int],
    ) -> None:
        self._holder = holder
        self.generation = generation
        self._section = section
        self._directory = directory
        self._remote = checkpoints.remote_copies(section.remote)
        self.step = step
        self.until: int | None = None
        self.lineage = Lineage()
        self.whole = True

    def save_start(self, start: Start) -> None:
        """The checkpoint of a beginning, from the leader's own memory.

        Raises:
            CheckpointError: the disk is full or failing.
        """
        self.lineage = start.lineage
        arrays = {name: _streamed(value) for name, value in start.values.items()}
        for slot, by_variable in start.slots.items():
            arrays.update({checkpoints.slot_key(name, slot): _streamed(array) for name, array in by_variable.items()})
        cut = SnapshotReply(start.version, tuple(start.slots), [], start.dealt, optimizer=start.optimizer)
        self._save(cut, arrays, [list(rows) for rows in start.seen], final=False)

    def save_cut(self, term: int = 0, *, final: bool = False, at_least: int = 0) -> int | None:
        """What the servers hold now; returns its step.

        Args:
            term: in which all servers must be.
            final: training has ended.
            at_least: nothing is saved, and None returned, if ps:0 has not reached this step.

        Raises:
            CheckpointError: the servers do not agree on a version, or the disk is full or failing.
            PeerError: a server is gone, or is in another term.
        """
        attempt = Cut(self.generation.training.updates == "sync", term)
        for _ in range(CUT_ATTEMPTS):
            last = self.generation.max_steps if self.until is None else self.until
            frames = self._holder.snapshot(attempt, attempt.question(self.step(), last))
            replies = [frame.message for frame in frames if isinstance(frame.message, SnapshotReply)]
            if replies[0].version < at_least:
                return None
            if attempt.accept([reply.version for reply in replies]):
                self.whole = attempt.whole(replies)
                seen = [reply.seen for reply in replies]
                self._save(replies[0], self._arrays(frames, replies), seen, final)
                return replies[0].version
        raise CheckpointError(f"the servers did not reach one version together in {CUT_ATTEMPTS} attempts")

    def _arrays(self, frames: Sequence[Frame], replies: Sequence[SnapshotReply]) -> dict[str, Array | Streamed]:
        """The servers' flat arrays as entries of a checkpoint: every shard under its variable's name and first row."""
        plan = self.generation.plan
        variables = plan.variables
        arrays: dict[str, Array | Streamed] = {}
        for server, (frame, reply) in enumerate(zip(frames, replies, strict=True)):
            layout = plan.layout(server)
            groups = layout.groups
            values, rest = list(frame.blocks[: len(groups)]), iter(frame.blocks[len(groups) :])
            by_slot = {slot: [next(rest) if g.trainable else values[i] for i, g in enumerate(groups)] for slot in reply.slots}
            shards = [shard for group in groups for shard in group.shards]
            value_views = layout.views(values)
            for shard in shards:
                arrays[checkpoints.part_key(variables[shard.variable].name, shard.row_start)] = value_views[shard.name]
            for slot, flats in by_slot.items():
                views = layout.views(flats)
                for shard in shards:
                    if shard.trainable:
                        key = checkpoints.slot_key(variables[shard.variable].name, slot)
                        arrays[checkpoints.part_key(key, shard.row_start)] = views[shard.name]
            for number, shard in enumerate(layout.tables):
                for slot in (VALUES, *(reply.slots if shard.trainable else ())):
                    name = variables[shard.variable].name
                    key = checkpoints.part_key(checkpoints.slot_key(name, slot) if slot else name, shard.row_start)
                    arrays[key] = Streamed(shard.dtype, shard.shape, self._table(server, number, shard, slot))
        return arrays

    def _table(self, server: int, number: int, shard: Shard, array: str) -> Iterator[Array]:
        """One array of a table, as it was at the last snapshot, block by block."""
        for start, stop in row_blocks(shard.shape, DTYPE_BYTES[shard.dtype]):
            yield self._holder.snapshot_rows(server, SnapshotRows(number, array, start, stop))

    def _save(
        self, cut: SnapshotReply, arrays: Mapping[str, Array | Streamed], seen: list[list[tuple[str, int, int]]], final: bool
    ) -> None:
        """Write what the servers hold; `cut` is what ps:0 says of it."""
        generation = self.generation
        extra = {
            "generation": generation.number,
            "optimizer": cut.optimizer,
            "compiled": generation.optimizer,
            "model": generation.model,
            "plan": generation.plan.to_dict(),
            "seen": seen,
            "dealt": cut.dealt,
            **msgspec.structs.asdict(self.lineage),
        }
        checkpoints.save(self._directory, cut.version, arrays, extra, final=final, now=time.time())
        checkpoints.rotate(
            self._directory, keep=self._section.keep, keep_every_n_hours=self._section.keep_every_n_hours, now=time.time()
        )
        if self._remote is not None:
            self._remote.upload(self._directory)


def _streamed(source: Any) -> Array | Streamed:
    """An array, or whatever can be sliced by rows, as a checkpoint takes it."""
    if isinstance(source, np.ndarray) or not source.shape:
        return np.asarray(source)
    blocks = (source[start:stop] for start, stop in row_blocks(source.shape, source.dtype.itemsize))
    return Streamed(source.dtype.name, source.shape, blocks)
