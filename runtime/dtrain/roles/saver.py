"""Writes what the servers hold into the folder of checkpoints. Rule 11."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError
from dtrain.messages import Lineage, Snapshot, SnapshotReply
from dtrain.protocol.batch_dealer import Dealt
from dtrain.roles.chief import Cut
from dtrain.roles.generation import Generation
from dtrain.roles.start import Start
from dtrain.wire.frames import Frame

CUT_ATTEMPTS = 10

Array = np.ndarray[Any, Any]


class Holder(Protocol):
    """Whoever can say what all servers hold."""

    def snapshot(self, cut: Cut, question: Snapshot) -> list[Frame]:
        """One answer a server: `SnapshotReply` with its blocks."""


class Saver:
    """Saves one generation.

    Attributes:
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
        self._generation = generation
        self._section = section
        self._directory = directory
        self.step = step
        self.lineage = Lineage()
        self.whole = True

    def save_start(self, start: Start) -> None:
        """The checkpoint of a beginning, from the leader's own memory.

        Raises:
            CheckpointError: the disk is full or failing.
        """
        self.lineage = start.lineage
        arrays = dict(start.values)
        for slot, by_variable in start.slots.items():
            arrays.update({checkpoints.slot_key(name, slot): array for name, array in by_variable.items()})
        self._save(start.version, arrays, [list(rows) for rows in start.seen], start.dealt, final=False)

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
        attempt = Cut(self._generation.training.updates == "sync", term)
        for _ in range(CUT_ATTEMPTS):
            frames = self._holder.snapshot(attempt, attempt.question(self.step(), self._generation.max_steps))
            replies = [frame.message for frame in frames if isinstance(frame.message, SnapshotReply)]
            if replies[0].version < at_least:
                return None
            if attempt.accept([reply.version for reply in replies]):
                self.whole = attempt.whole(replies)
                seen = [reply.seen for reply in replies]
                self._save(replies[0].version, self._arrays(frames, replies), seen, replies[0].dealt, final)
                return replies[0].version
        raise CheckpointError(f"the servers did not reach one version together in {CUT_ATTEMPTS} attempts")

    def _arrays(self, frames: Sequence[Frame], replies: Sequence[SnapshotReply]) -> dict[str, Array]:
        """The servers' flat arrays as entries of a checkpoint: every shard under its variable's name and first row."""
        plan = self._generation.plan
        variables = plan.variables
        arrays: dict[str, Array] = {}
        for server, (frame, reply) in enumerate(zip(frames, replies, strict=True)):
            layout = plan.layout(server)
            groups = layout.groups
            values, rest = list(frame.blocks[: len(groups)]), iter(frame.blocks[len(groups) :])
            by_slot = {slot: [next(rest) if g.trainable else values[i] for i, g in enumerate(groups)] for slot in reply.slots}
            shards = [shard for shard in plan.shards if shard.server == server]
            value_views = layout.views(values)
            for shard in shards:
                arrays[checkpoints.part_key(variables[shard.variable].name, shard.row_start)] = value_views[shard.name]
            for slot, flats in by_slot.items():
                views = layout.views(flats)
                for shard in shards:
                    if shard.trainable:
                        key = checkpoints.slot_key(variables[shard.variable].name, slot)
                        arrays[checkpoints.part_key(key, shard.row_start)] = views[shard.name]
        return arrays

    def _save(
        self, step: int, arrays: Mapping[str, Array], seen: list[list[tuple[str, int, int]]], dealt: Dealt, final: bool
    ) -> None:
        generation = self._generation
        extra = {
            "generation": generation.number,
            "optimizer": generation.optimizer,
            "model": generation.model,
            "plan": generation.plan.to_dict(),
            "seen": seen,
            "dealt": dealt,
            **msgspec.structs.asdict(self.lineage),
        }
        checkpoints.save(self._directory, step, arrays, extra, final=final, now=time.time())
        checkpoints.rotate(
            self._directory, keep=self._section.keep, keep_every_n_hours=self._section.keep_every_n_hours, now=time.time()
        )
