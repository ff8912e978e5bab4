"""The lease of an agent: without its launcher it stops its tasks in order, and then kills them. Pure.

A launcher echoes the newest moment of the agent's own clock that it has heard of, and the lease runs from
that moment. So an agent that can be heard no more ends its tasks although it still hears, pings that were
delayed prolong nothing, and the launcher, which knows when it has heard last, knows when nothing is left.
"""

from collections.abc import Iterable

from dtrain.cluster import TaskId
from dtrain.runs.states import RunState
from dtrain_cli.launch.policies import ordered_stop
from dtrain_cli.launch.policies.ordered_stop import RemainingTask, RunStop

LEASE_S = 8.0
"""The shortest lease: from the last moment of the agent's clock that the launcher has echoed to SIGTERM."""
GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL."""
REST_S = 7.0
"""Seconds from the end of an unheard agent's lease after which its launcher takes its tasks for dead."""
assert GRACE_S < REST_S


class Lease:
    """The lease of one agent, by the monotonic clock of its host; an `order` is never taken back."""

    def __init__(self, now_s: float, lease_s: float = LEASE_S) -> None:
        self._heard_s = now_s
        self._lease_s = lease_s
        self.order: RunStop | None = None

    @property
    def ends_s(self) -> float:
        return self._heard_s + self._lease_s

    def renew(self, heard_s: float) -> None:
        if self.order is None:
            self._heard_s = max(self._heard_s, heard_s)

    def due(self, there: Iterable[RemainingTask], now_s: float) -> list[tuple[TaskId, int]]:
        if self.order is None and now_s >= self.ends_s:
            self.order = RunStop(RunState.STOPPED, 143, self.ends_s, GRACE_S, {})
        return [] if self.order is None else ordered_stop.due(self.order, there, now_s)
