"""The replicas that are stuck, and are to be killed and started again. Pure: the clock is an argument.

A dead replica costs the others little: its sockets are at their end, and they go on without it. One that
lives and does nothing, or that is stopped, would hold them up. The launcher has started it, and knows what
every task reports. Rule *No silent wait* (docs/design/protocol.md#no-silent-wait).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dtrain.cluster import TaskId
from dtrain.config import RunSpec, ServerSection
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain_cli.launch.policies.awaited_tasks import SILENT_S, tasks_in
from dtrain_cli.launch.tasks.task_life import Stuck

AWAY_S = 5.0
"""A launcher that has not looked for so long was stopped itself, and begins to watch anew."""


def silence_limit_s(spec: RunSpec, stall_s: float) -> float:
    """Return how long a replica may report nothing, whatever it does.

    Servers give up a leader, or a step, that lacks a replica which does not answer. Half of that time is left
    for a replica to be started again.
    """
    limits = [stall_s]
    if isinstance(spec.training, ServerSection):
        limits += [spec.wait.leader_s / 2, spec.training.too_few_timeout_s / 2]
    return max(SILENT_S, min(limits))


@dataclass
class StuckWatch:
    """A watch on what the tasks of a run report.

    Attributes:
        stall_s: how long others wait for a replica that does nothing.
        silence_s: see `silence_limit_s`.
    """

    stall_s: float
    silence_s: float
    _looked_s: float = math.inf
    _seen_s: dict[str, float] = field(default_factory=dict)

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> dict[str, Stuck]:
        """Return the replicas that are stuck.

        One is stuck that has stopped to report while others report; or that others have waited for as long
        as it has read the same batch, or has neither read, computed nor evaluated one in its call of `fit`.
        It is not if it waits itself, or runs a callback or a validation, which may take any time.

        Args:
            statuses: by task, of those that run on hosts which are heard.
            now_s: the monotonic clock, as in the statuses.
        """
        before = self._seen_s if now_s - self._looked_s < AWAY_S else {}
        self._seen_s = {task: before.get(task, now_s) for task in statuses}
        self._looked_s = now_s
        fresh = {task: said for task, said in statuses.items() if now_s - said.monotonic_s < SILENT_S}
        awaited = self._awaited(fresh)
        found = {
            task: self._judged(said, max(said.monotonic_s, self._seen_s[task]), awaited.get(task), now_s)
            for task, said in statuses.items()
            if fresh and TaskId.parse(task).trains and said.phase is TaskPhase.RUNNING
        }
        return {task: stuck for task, stuck in found.items() if stuck is not None}

    def _awaited(self, fresh: Mapping[str, TaskStatus]) -> dict[str, str]:
        """Return the tasks for which others have waited for the stall timeout, each with who has."""
        awaited: dict[str, str] = {}
        for task, said in fresh.items():
            waited_s = said.monotonic_s - max(said.waiting_monotonic_s or math.inf, self._seen_s[task])
            if waited_s >= self.stall_s:
                why = f"{task} has waited {waited_s:.0f} s for {said.waiting_for}, and it "
                awaited |= dict.fromkeys(tasks_in(said.waiting_for or ""), why)
        return awaited

    def _judged(self, said: TaskStatus, heard_s: float, awaited: str | None, now_s: float) -> Stuck | None:
        step = f"at step {said.step or 0}"
        if now_s - heard_s >= self.silence_s:
            silent = f"it has not reported for {now_s - heard_s:.0f} s"
            return Stuck(f"{step}, where its process stood still", silent, heard_s)
        if awaited is None or said.waiting_for or said.busy_with:
            return None
        reading_s, active_s, at_s = said.reading_monotonic_s, said.active_monotonic_s, said.monotonic_s
        if reading_s is not None and at_s - reading_s >= self.stall_s:
            reads = f"{awaited}has read its next batch for {at_s - reading_s:.0f} s"
            return Stuck(f"in its input {step}", reads, reading_s)
        if said.fits_begun > said.fits_ended and at_s - active_s >= self.stall_s:
            return Stuck(f"in its computation {step}", f"{awaited}does nothing", active_s)
        return None
