"""What a server gives for a checkpoint, and for how long training waits for it. Machine.

In sync a checkpoint is one version, and nothing waits. In async every server counts its own versions; a checkpoint is one cut when
all servers have applied the same pushes. So ps:0 gives no tickets while it is marked: it answers when the pushes under way
have arrived, the others when they have seen what it had, and the leader's `Resume` ends the wait of at most one step. A replica
that computes for longer than the leader waits, or a leader that is gone, does not stop the others: the mark runs out, and the
answer says that it is not whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.messages import Snapshot, SnapshotReply
from dtrain.roles.held import Held

MARK_S = 1.0
"""How long after ps:0's answer the others may take to give theirs."""

Answer = tuple[SnapshotReply, Sequence[np.ndarray[Any, Any]]]


@dataclass
class Snapshots:
    """One server's part in checkpoints."""

    _resume_at_s: float = math.inf

    def asked(self, held: Held | None, question: Snapshot, now: float) -> None:
        """A question has arrived; it may have to wait."""
        if question.mark and held is not None and held.term == question.term:
            held.pushes.pause(True)
            self._resume_at_s = now + question.wait_s + MARK_S

    def answer(self, held: Held, question: Snapshot, live: tuple[str, ...], late: bool) -> Answer | None:
        """The state, as soon as it is what was asked for, or when it is late."""
        quiet = held.pushes.quiet or not question.mark
        whole = held.pushes.version >= question.at_least and quiet and held.seen.covers(question.covers)
        if not (whole or late):
            return None
        names, arrays = held.store.snapshot()
        seen, dealt, rule = held.seen.export(), held.dealer.export(), held.store.optimizer_config
        return SnapshotReply(held.pushes.version, names, seen, dealt, live, whole, rule), arrays

    def resume(self, held: Held | None) -> None:
        """Every server has answered."""
        self._resume_at_s = math.inf
        if held is not None:
            held.pushes.pause(False)

    def tick(self, held: Held | None, now: float) -> None:
        """Time has passed: a mark that nobody ends runs out."""
        if now >= self._resume_at_s:
            self.resume(held)
