"""Saves a generation on its schedule while it trains, and once more at the end: a thread that runs the machines of `chief`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError, DtrainError
from dtrain.messages import Snapshot, SnapshotReply
from dtrain.protocol.batch_dealer import Dealt
from dtrain.roles.chief import CheckpointSchedule, Cut
from dtrain.roles.generation import Generation
from dtrain.roles.start import Start
from dtrain.wire.frames import Frame

CUT_ATTEMPTS = 10

Array = np.ndarray[Any, Any]
Warn = Callable[[str], None]


class Holder(Protocol):
    """Whoever can say what all servers hold."""

    def snapshot(self, question: Snapshot) -> list[Frame]:
        """One answer a server: `SnapshotReply` with its blocks."""


class CheckpointThread:
    """Saves a generation on its schedule while it trains, and once more at the end."""

    def __init__(
        self,
        holder: Holder,
        generation: Generation,
        section: CheckpointSection,
        directory: Path,
        warn: Warn,
        step: Callable[[], int],
    ) -> None:
        """Begin.

        Args:
            holder: asks the servers.
            generation: what is saved.
            section: when, and how many are kept.
            directory: where.
            warn: told of a checkpoint that could not be written while training goes on.
            step: the newest global step.
        """
        self._holder = holder
        self._generation = generation
        self._section = section
        self._directory = directory
        self._warn = warn
        self._step = step
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def save_first(self, start: Start) -> None:
        """Write the checkpoint of the start, from the leader's own memory, and go on in the background."""
        arrays = {name: start.values[name] for name in start.values}
        for slot, by_variable in start.slots.items():
            arrays.update({checkpoints.slot_key(name, slot): array for name, array in by_variable.items()})
        self._save(start.version, arrays, [list(rows) for rows in start.seen], start.dealt, final=False)
        self._schedule = CheckpointSchedule(self._section, time.monotonic(), start.version)
        self._thread.start()

    def finish(self) -> None:
        """Write the final checkpoint; the schedule ends."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._save_cut(final=True)

    def stop(self) -> None:
        """The schedule ends; nothing more is written."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._schedule.wait_s(time.monotonic())):
            step = self._step()
            if self._schedule.due(step, time.monotonic()):
                try:
                    self._save_cut(final=False)
                except DtrainError as error:
                    if not self._stopped.is_set():
                        self._warn(f"no checkpoint of step {step}: {error}")
                self._schedule.saved(step, time.monotonic())

    def _save_cut(self, final: bool) -> None:
        attempt = Cut(self._generation.training.updates == "sync")
        for _ in range(CUT_ATTEMPTS):
            frames = self._holder.snapshot(attempt.question(self._step(), self._generation.max_steps))
            replies = [frame.message for frame in frames if isinstance(frame.message, SnapshotReply)]
            if attempt.accept([reply.version for reply in replies]):
                arrays = self._arrays(frames, replies)
                self._save(replies[0].version, arrays, [reply.seen for reply in replies], replies[0].dealt, final)
                return
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
            "plan": generation.plan.to_dict(),
            "seen": seen,
            "origin": generation.origin,
            "dealt": dealt,
        }
        checkpoints.save(self._directory, step, arrays, extra, final=final, now=time.time())
        checkpoints.rotate(
            self._directory, keep=self._section.keep, keep_every_n_hours=self._section.keep_every_n_hours, now=time.time()
        )
