"""Orders that a replica be killed which is alive but stuck while others wait for it; the launcher does it.

A dead replica costs the others nothing: its sockets are at their end, and they finish its part of the step.
One that is alive and does nothing would hold up all of them for ever. Rule *No silent wait*
(docs/design/protocol.md#no-silent-wait).
"""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record

_REPLICA = re.compile(r"\b(?:chief|worker):\d+\b")


def is_stuck(said: TaskStatus, now_s: float, stall_s: float) -> bool:
    """Return whether a replica that others wait for does nothing.

    It does not if it has stopped to write its own status, whatever it said last; or if it has neither read,
    computed nor evaluated a batch, runs no callback, and waits for no other replica.

    Args:
        said: the newest of its reports.
        now_s: the machine's monotonic clock.
        stall_s: for how long.
    """
    if said.phase is not TaskPhase.RUNNING:
        return False
    if now_s - said.monotonic_s >= stall_s:
        return True
    return said.busy_with is None and said.waiting_for is None and now_s - said.active_monotonic_s >= stall_s


class StuckReplicas:
    """The watch of one replica over those for which it waits."""

    def __init__(
        self, run_dir: Path, task: TaskId, stall_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin.

        Args:
            run_dir: where tasks report and the launcher reads orders.
            task: which waits.
            stall_s: after how long one that is stuck is killed.
            clock: the machine's, in seconds.
        """
        self._files = RunFiles(run_dir)
        self._task = task
        self._stall_s = stall_s
        self._clock = clock

    def look(self, awaited: str, waited_s: float) -> None:
        """Order those to be killed that are stuck.

        Args:
            awaited: the replicas, and what they have not delivered: ``worker:2, gradient of step 311``.
            waited_s: for how long this one waits for them.
        """
        if waited_s < self._stall_s:
            return
        for name in _REPLICA.findall(awaited):
            task = TaskId.parse(name)
            with contextlib.suppress(RunError, OSError):
                said = read_record(self._files.status(task), TaskStatus)
                if said is not None and task != self._task and is_stuck(said, self._clock(), self._stall_s):
                    reason = f"{self._task} has waited {waited_s:.0f} s for {awaited}, and it does nothing"
                    write_record(self._files.kill(task, said.attempt), KillRequest(reason))
