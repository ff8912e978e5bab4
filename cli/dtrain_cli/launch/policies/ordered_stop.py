"""Which task gets the order to stop when, and which is killed when. Pure: `due` is called again until no task
is left.

The order is: workers, evaluator, chief, servers. Each begins when those before it are gone, so that the chief
can still save and the evaluator still read, and the servers outlive all their clients. Deadlines run
from the order to stop, not from the first task that stops.

After success the others may leave by themselves first: the workers finish their last lines, the evaluator
evaluates the final checkpoint. After anything else all must be gone `grace_s` after the order, and a slow
task does not use up the time of those behind it: a stage begins at the latest at its share of the grace.
"""

import math
import signal
from collections.abc import Iterable, Mapping

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.runs.states import RunState

STAGES = (Role.WORKER, Role.EVALUATOR, Role.CHIEF, Role.PS)
_SHARE = {Role.WORKER: 0.0, Role.EVALUATOR: 0.0, Role.CHIEF: 0.3, Role.PS: 0.9}


class RunStop(msgspec.Struct, frozen=True):
    """The order to stop a run.

    Attributes:
        exit_code: of the launcher, unless the cause of a failure gives another.
        at_s: the moment of the order (monotonic).
        grace_s: from a task's SIGTERM (after success) or from the order (else) to SIGKILL.
        leave_s: how long the tasks of a role may take to end by themselves; absent: not at all.
    """

    state: RunState
    exit_code: int
    at_s: float
    grace_s: float
    leave_s: Mapping[Role, float] = msgspec.field(default_factory=dict)

    @property
    def patient(self) -> bool:
        """Whether the tasks have all the time they need, one stage after the other."""
        return self.state == RunState.SUCCEEDED

    def may_start_again(self, role: Role, at_s: float) -> bool:
        """Return whether a task of a role may still start: after success the evaluator, while it has time."""
        return self.patient and role is Role.EVALUATOR and at_s < self.at_s + self.leave_s.get(role, 0.0)

    def kill_s(self, remaining: "RemainingTask") -> float:
        if not self.patient:
            return self.at_s + self.grace_s
        return math.inf if remaining.stop_s is None else remaining.stop_s + self.grace_s


class RemainingTask(msgspec.Struct, frozen=True):
    """A task that is still there, and when it got the order to stop (None: not yet)."""

    task: TaskId
    stop_s: float | None = None


def due(order: RunStop, there: Iterable[RemainingTask], now_s: float) -> list[tuple[TaskId, int]]:
    """Return the signals to send now. Repeated calls repeat SIGKILL to tasks that are left, never SIGTERM."""
    signals: list[tuple[TaskId, int]] = []
    waiting = sorted(there, key=lambda remaining: (STAGES.index(remaining.task.role), remaining.task.index))
    first_role = waiting[0].task.role if waiting else None
    for remaining in waiting:
        role = remaining.task.role
        if now_s >= order.kill_s(remaining):
            signals.append((remaining.task, signal.SIGKILL))
            continue
        if order.patient:
            begins = role is first_role and now_s >= order.at_s + order.leave_s.get(role, 0.0)
        else:
            begins = role is first_role or now_s >= order.at_s + order.grace_s * _SHARE[role]
        if remaining.stop_s is None and begins:
            signals.append((remaining.task, signal.SIGTERM))
    return signals


def reluctant(order: RunStop, there: Iterable[RemainingTask], now_s: float) -> list[TaskId]:
    """Return the tasks that have used half of their time to stop."""
    slow = []
    for remaining in there:
        kill_s = order.kill_s(remaining)
        if remaining.stop_s is not None and (remaining.stop_s + kill_s) / 2 <= now_s < kill_s:
            slow.append(remaining.task)
    return slow
