"""A server's state for a checkpoint, and the time for which training waits for it. Machine.

Rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints).

In sync a checkpoint is one version, and nothing waits. In async every server counts its own versions; a
checkpoint is one cut when all servers have applied the same batches. So the leader marks every server: from
then on new pushes wait. What any of them had applied when it was marked is on its way to the others, who let
it pass; when a server has all of it, it remembers its state, and the pushes that waited are dealt with. It
waits for no replica that computes, only for a push to arrive everywhere. One that never does, of a replica
that died halfway, is not waited for long, nor is a leader that is gone: the mark runs out. Then the
checkpoint is no cut, but says of every server which batches it contains; see `protocol.applied_batches`.
"""

import math
from dataclasses import dataclass, field

from dtrain.cluster import TaskId
from dtrain.control.interface import Caller
from dtrain.messages import Mark, Push, Snapshot, SnapshotReply
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.roles.parameter_server.term_state import TermState
from dtrain.runs.events import CutTaken
from dtrain.types import Blocks

Delivery = tuple[Caller, TaskId, Push, Blocks]
"""A push as it arrived."""

UNREAD_S = 60.0
"""A snapshot that has not been read for so long is dropped: its leader is gone, or its disk is full."""


@dataclass
class Snapshots:
    """One server's part in checkpoints.

    Attributes:
        number: of the question that was answered last: what is remembered was meant for it.
        taken: for the trace, what is remembered.
        waiting: pushes that have to wait.
    """

    number: int = 0
    taken: CutTaken = field(default_factory=lambda: CutTaken(step=0, whole=True))
    waiting: list[Delivery] = field(default_factory=list)
    _marked_until_s: float = -math.inf
    _forget_at_s: float = math.inf
    _covers_more: bool = False
    _covers: AppliedBatches = field(default_factory=AppliedBatches)

    def mark(self, question: Mark, now: float) -> None:
        """Hold new pushes from now on."""
        self._marked_until_s, self._covers = now + question.wait_s, AppliedBatches()

    def asked(self, question: Snapshot, now: float) -> None:
        """Record that the state is wanted: pushes that it is to contain need not wait."""
        self._covers = AppliedBatches(*question.covers)
        if now < self._marked_until_s:
            self._marked_until_s = now + question.wait_s
            self._covers_more = True
        self._forget_at_s = now + question.wait_s + UNREAD_S

    def read(self, now: float) -> None:
        """Record that some of the state is asked for."""
        self._forget_at_s = now + UNREAD_S

    def tick(self, held: TermState | None, now: float) -> None:
        """Time has passed: let go of what is not read any more."""
        if now >= self._forget_at_s and held is not None:
            self._forget_at_s = math.inf
            held.store.forget_snapshots()

    def keeps(self, delivery: Delivery, now: float) -> bool:
        """Whether a push has to wait."""
        waits = now < self._marked_until_s and delivery[2].part not in self._covers
        if waits:
            self.waiting.append(delivery)
        return waits

    def released(self, now: float) -> list[Delivery]:
        """Return the pushes that need not wait any more, to be handled as if they came now."""
        if now < self._marked_until_s and not self._covers_more:
            return []
        self._covers_more = False
        waiting, self.waiting = self.waiting, []
        return [delivery for delivery in waiting if not self.keeps(delivery, now)]

    def forget(self, caller: Caller) -> None:
        """Drop the waiting pushes of a lost connection, which will come again."""
        self.waiting = [delivery for delivery in self.waiting if delivery[0] != caller]

    def answer(self, held: TermState, question: Snapshot, late: bool) -> SnapshotReply | None:
        """Return the state, once it is what was asked for, or late; pushes need not wait any more."""
        applied = held.applied
        whole = held.version >= question.at_least and (applied is None or applied.covers(question.covers))
        if not (whole or late):
            return None
        if applied is not None:
            applied.forget_below(question.settled)
        self._marked_until_s, self.number = -math.inf, question.number
        self.taken = CutTaken(step=held.version, whole=whole)
        held.store.mark()
        return SnapshotReply(state=held.state, slots=tuple(held.store.slots), assigned=held.store.assigned)
