"""Runs the leader's machine: makes the variables exist on every server, saves them, and says farewell. It decides nothing.

Everything here happens beside training: on connections of its own, the checkpoints in a thread of their own.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dtrain import checkpoints
from dtrain.cluster import Role, TaskId
from dtrain.config import CheckpointSection, TrainingSection
from dtrain.errors import CheckpointError, DtrainError, PeerLostError, PeerRefusedError
from dtrain.messages import AnyMessage, Farewell, Initialise, Initialised, Refusal, SnapshotReply
from dtrain.protocol.placement import Plan
from dtrain.protocol.replica_memory import Array, cut
from dtrain.roles.chief import CheckpointSchedule, Cut
from dtrain.wire.channel import Channel
from dtrain.wire.frames import Frame

CUT_ATTEMPTS = 10

Connect = Callable[[int, float], Channel]
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """From where training starts.

    Attributes:
        version: 0, or the step of the checkpoint that everything else comes from.
        slots: by slot name, then by variable; empty for a fresh start.
    """

    version: int
    values: Mapping[str, Array]
    slots: Mapping[str, Mapping[str, Array]]
    seen: Sequence[Sequence[tuple[str, int, int]]] = ()


@dataclass(frozen=True)
class Generation:
    """What one call of `fit` trains, as the servers are told."""

    number: int
    plan: Plan
    training: TrainingSection
    optimizer: dict[str, Any]
    max_steps: int


class Leader:
    """The leader's connections to every server."""

    def __init__(self, servers: int, connect: Connect, connect_s: float) -> None:
        """Connect to every server.

        Raises:
            WaitTimeoutError: one is not there within `connect_s`.
        """
        self._channels = [connect(server, connect_s) for server in range(servers)]
        self._lock = threading.Lock()

    def initialise(self, generation: Generation, start: Start, directory: str) -> int:
        """Make the variables exist everywhere; returns the version that they are at (a re-attached leader finds them kept).

        Raises:
            PeerRefusedError: a server will not have them.
        """
        plan = generation.plan
        values = cut(plan, start.values)
        slots = {name: cut(plan, by_variable) for name, by_variable in start.slots.items()}
        for server, channel in enumerate(self._channels):
            trainable = [i for i, group in enumerate(plan.layout(server).groups) if group.trainable]
            blocks = [*values[server], *(slots[name][server][i] for name in slots for i in trainable)]
            message = Initialise(
                generation.number,
                plan.to_dict(),
                msgspec.to_builtins(generation.training),
                generation.optimizer,
                start.version,
                generation.max_steps,
                directory,
                tuple(slots),
                list(start.seen[server]) if start.seen else [],
            )
            channel.send(message, blocks)
        answers = [self._expect(Initialised, channel.receive()).message for channel in self._channels]
        return max(answer.version for answer in answers if isinstance(answer, Initialised))

    def snapshot(self, question: AnyMessage) -> list[Frame]:
        """Ask every server for its state."""
        with self._lock:
            for channel in self._channels:
                channel.send(question)
            return [self._expect(SnapshotReply, channel.receive()) for channel in self._channels]

    def farewell(self) -> None:
        """Tell every server that nobody will train any more, and close the connections."""
        for channel in self._channels:
            try:
                channel.send(Farewell())
            except PeerLostError:
                continue
        self.close()

    def abort(self, reason: str) -> None:
        """From another thread: give up whatever is being waited for."""
        for channel in self._channels:
            channel.abort(reason)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()

    @staticmethod
    def _expect(kind: type[AnyMessage], frame: Frame) -> Frame:
        if isinstance(frame.message, Refusal):
            raise PeerRefusedError(frame.message.reason)
        if not isinstance(frame.message, kind):
            raise PeerRefusedError(f"a server answered {type(frame.message).__name__} where {kind.__name__} was expected")
        return frame


class CheckpointThread:
    """Saves a generation on its schedule while it trains, and once more at the end."""

    def __init__(
        self,
        leader: Leader,
        generation: Generation,
        section: CheckpointSection,
        directory: Path,
        warn: Warn,
        step: Callable[[], int],
    ) -> None:
        """Begin.

        Args:
            leader: asks the servers.
            generation: what is saved.
            section: when, and how many are kept.
            directory: where.
            warn: told of a checkpoint that could not be written while training goes on.
            step: the newest global step.
        """
        self._leader = leader
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
        self._save(start.version, arrays, [list(rows) for rows in start.seen], final=False)
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
            frames = self._leader.snapshot(attempt.question(self._step(), self._generation.max_steps))
            replies = [frame.message for frame in frames if isinstance(frame.message, SnapshotReply)]
            if attempt.accept([reply.version for reply in replies]):
                arrays = self._arrays(frames, replies)
                self._save(replies[0].version, arrays, [reply.seen for reply in replies], final)
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

    def _save(self, step: int, arrays: Mapping[str, Array], seen: list[list[tuple[str, int, int]]], final: bool) -> None:
        generation = self._generation
        extra = {
            "generation": generation.number,
            "optimizer": generation.optimizer,
            "plan": generation.plan.to_dict(),
            "seen": seen,
        }
        checkpoints.save(self._directory, step, arrays, extra, final=final, now=time.time())
        checkpoints.rotate(
            self._directory, keep=self._section.keep, keep_every_n_hours=self._section.keep_every_n_hours, now=time.time()
        )


def server_name(server: int) -> str:
    """How a server is called in messages: ``ps:0``."""
    return str(TaskId(Role.PS, server))
