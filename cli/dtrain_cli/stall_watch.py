"""Notices that training stands still. Pure: the clock is an argument."""

from collections.abc import Iterable
from dataclasses import dataclass

from dtrain.run_files import TaskStatus


@dataclass
class StallWatch:
    """Looks at what the training tasks say of their progress; reports each stall once.

    Attributes:
        timeout_s: how long no task may have risen its step.
        stalled: where training stands still and whom it waits for, ``stalled at step 412, waiting for ps:0``; None: it goes on.
    """

    timeout_s: float
    stalled: str | None = None

    def look(self, statuses: Iterable[TaskStatus], now_s: float) -> str | None:
        """What to say about a stall that has just become one; None otherwise.

        Args:
            statuses: of the training tasks that are up and not yet done.
            now_s: the monotonic clock, as in the statuses.
        """
        training = [status for status in statuses if status.phase == "running" and status.progress_monotonic_s > 0]
        newest_s = max((status.progress_monotonic_s for status in training), default=now_s)
        before, self.stalled = self.stalled, _place(training) if now_s - newest_s >= self.timeout_s else None
        if before or not self.stalled:
            return None
        return f"{self.stalled}: no progress for {self.timeout_s:g} s; the tasks' stacks are in their logs"


def _place(training: list[TaskStatus]) -> str:
    step = max((status.step or 0 for status in training), default=0)
    whom = sorted({status.waiting_for for status in training if status.waiting_for})
    return f"stalled at step {step}" + (f", waiting for {', '.join(whom)}" if whom else "")
