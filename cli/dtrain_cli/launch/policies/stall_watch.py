"""Notices that training stands still. Pure: the clock is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass

from dtrain.cluster import TaskId
from dtrain.messages.status import TaskPhase, TaskStatus, global_step
from dtrain_cli.launch.policies.awaited_tasks import awaited_in_the_end


@dataclass
class StallWatch:
    """A watch on what the training tasks report of their progress. It reports each stall once.

    Attributes:
        timeout_s: how long no task may have risen its step.
        stalled: where training stands still and whom it waits for, ``stalled at step 412, waiting for
            worker:1``; None: it goes on.
    """

    timeout_s: float
    stalled: str | None = None

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return what to say about a stall that has just become one; None otherwise.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        training = [
            status
            for task, status in statuses.items()
            if TaskId.parse(task).trains
            and status.phase == TaskPhase.RUNNING
            and status.progress_monotonic_s > 0
        ]
        newest_s = max((status.progress_monotonic_s for status in training), default=now_s)
        before = self.stalled
        self.stalled = None
        if now_s - newest_s >= self.timeout_s:
            step = global_step(statuses.values()) or 0
            whom = ", ".join(awaited_in_the_end(statuses, now_s))
            self.stalled = f"stalled at step {step}" + (f", waiting for {whom}" if whom else "")
        if before or not self.stalled:
            return None
        return f"{self.stalled}: no progress for {self.timeout_s:g} s; the tasks' stacks are in their logs"
