"""The leader's machine: when a checkpoint is due, and whether what the servers sent is one. Pure.

A synchronous checkpoint is one version on all servers. The leader asks every server for its state *at* a version a little ahead
of where training stands, so the question arrives before the version does; if it came too late somewhere, it asks again further
ahead. At the end all servers stand at the last step and agree at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.config import CheckpointSection
from dtrain.messages import Snapshot

FIRST_MARGIN_STEPS = 2
ANSWER_WAIT_S = 2.0


@dataclass
class CheckpointSchedule:
    """When to save: every so many seconds or steps, whichever comes first; step 0 and the end are not its business."""

    section: CheckpointSection
    last_s: float
    last_step: int

    def due(self, step: int, now: float) -> bool:
        """Whether a checkpoint of `step` should be written now. Never twice of the same step."""
        if step <= self.last_step:
            return False
        by_time = self.section.every_s is not None and now - self.last_s >= self.section.every_s
        by_steps = self.section.every_steps is not None and step - self.last_step >= self.section.every_steps
        return by_time or by_steps

    def saved(self, step: int, now: float) -> None:
        """A checkpoint of `step` has been written."""
        self.last_s, self.last_step = now, step

    def wait_s(self, now: float) -> float:
        """How long it is sensible to sleep before asking again."""
        if self.section.every_steps is not None:
            return 0.05
        until = self.last_s + self.section.every_s - now if self.section.every_s is not None else 1.0
        return min(1.0, max(0.05, until))


@dataclass
class Cut:
    """One attempt after another to get the same version from every server.

    Attributes:
        sync: whether a checkpoint must be one version; asynchronous servers each give what they have.
        term: in which all servers must be.
    """

    sync: bool
    term: int = 0
    margin_steps: int = FIRST_MARGIN_STEPS

    def question(self, newest: int, max_steps: int) -> Snapshot:
        """What to ask every server."""
        at_least = min(newest + self.margin_steps, max_steps) if self.sync else 0
        return Snapshot(at_least, ANSWER_WAIT_S if self.sync else 0.0, self.term)

    def accept(self, versions: Sequence[int]) -> bool:
        """Whether the answers make a checkpoint; if not, the next question looks further ahead."""
        if not self.sync or len(set(versions)) == 1:
            return True
        self.margin_steps *= 2
        return False
