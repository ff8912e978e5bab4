"""The leader's machine: when a checkpoint is due, and whether what the servers sent is one. Pure.

A synchronous checkpoint is one version on all servers. The leader asks every server for its state *at* a
version a little ahead of where training stands, so the question arrives before the version does; if it came
too late somewhere, it asks again further ahead. At the end all servers stand at the last step and agree at
once. For an asynchronous one all servers are marked first; it contains the same batches on all of them; see
`snapshots`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.config import CheckpointSection
from dtrain.messages import Mark, Marked, Snapshot, SnapshotReply
from dtrain.protocol.applied_batches import union, without

FIRST_MARGIN_STEPS = 2
ANSWER_WAIT_S = 0.5
"""Ask for a version two steps ahead. Where steps take longer, servers answer with the one that there is."""
ARRIVAL_S = 2.0
"""The time for a push to arrive on every server."""
MARK_S = 2.0
"""The time from a server's mark to the question for its state: the others are marked in between."""


@dataclass
class CheckpointSchedule:
    """A schedule of checkpoints: every so many seconds or steps, whichever comes first.

    Step 0 and the end are saved besides.
    """

    section: CheckpointSection
    last_s: float
    last_step: int

    def due(self, step: int, now: float) -> bool:
        """Return whether a checkpoint of `step` should be written now, never twice of the same step."""
        if step <= self.last_step:
            return False
        by_time = self.section.every_s is not None and now - self.last_s >= self.section.every_s
        by_steps = self.section.every_steps is not None and step - self.last_step >= self.section.every_steps
        return by_time or by_steps

    def saved(self, step: int, now: float) -> None:
        """Record that a checkpoint of `step` has been written."""
        self.last_s = now
        self.last_step = step

    def wait_s(self, now: float) -> float:
        """Return how long to sleep before asking again."""
        if self.section.every_steps is not None:
            return 0.05
        until = self.last_s + self.section.every_s - now if self.section.every_s is not None else 1.0
        return min(1.0, max(0.05, until))


@dataclass
class Cut:
    """One attempt after another to get the same state from every server.

    Attributes:
        sync: whether a checkpoint is one version.
        term: in which all servers must be.
        host: the server that hosts the control plane.
    """

    sync: bool
    term: int = 0
    margin_steps: int = FIRST_MARGIN_STEPS
    host: int = 0

    def question(self, newest: int, last: int) -> Snapshot:
        """Return the question to every server in sync; versions beyond `last` wait for the leader."""
        return Snapshot(at_least=min(newest + self.margin_steps, last), wait_s=ANSWER_WAIT_S, term=self.term)

    def mark(self) -> Mark:
        """Return the first message to every server in async."""
        return Mark(wait_s=MARK_S, term=self.term)

    def marked(self, answers: Sequence[Marked]) -> Snapshot:
        """Return the second question to every server in async: for all that any of them had applied.

        Batches that wait at ps:0 to be computed again are left out: no replica is sending them.
        """
        own = answers[self.host]
        covers = without(union([answer.applied for answer in answers]), own.again)
        return Snapshot(at_least=0, wait_s=ARRIVAL_S, term=self.term, covers=covers, settled=own.settled)

    def whole(self, replies: Sequence[SnapshotReply]) -> bool:
        """Return whether the answers make one cut: in async, equal batches applied on all servers."""
        applied = {tuple(each.batches for each in reply.state.contents) for reply in replies}
        return self.sync or len(applied) == 1

    def accept(self, versions: Sequence[int], assigned: Sequence[tuple[int, int]] = ()) -> bool:
        """Return whether the answers make a checkpoint; if not, the next question looks further ahead.

        Args:
            versions: of the servers.
            assigned: the numbers of the orders whose values they have: they are in all of them, or in none.
        """
        if self.sync and len(set(versions)) > 1:
            self.margin_steps *= 2
            return False
        return len(set(assigned)) <= 1
