"""The statuses of tasks on other hosts, for those who order that a task be killed which does not answer.

A leader looks at a server's status, and a replica at that of another replica for which it waits, before it
orders so. On one machine they read each other's files; here the launcher passes on the fields that they read.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dtrain.cluster import TRAINING_ROLES, Role, TaskId
from dtrain_cli.agent.messages import Put
from dtrain_cli.fleet.mirror import HostClock, rebased

SERVERS_EVERY_S = 1.0
"""Well below the lease at a control host, after which a silent server may be killed."""
REPLICAS_EVERY_S = 5.0
FIELDS = (
    *("task", "pid", "host", "attempt", "phase", "monotonic_s"),
    *("active_monotonic_s", "busy_with", "waiting_for"),
)


class SharedStatuses:
    """The passing on of statuses in one run."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._sent: dict[tuple[str, TaskId], Any] = {}

    def due(
        self,
        now_s: float,
        said: Callable[[TaskId], Mapping[str, Any] | None],
        places: Mapping[TaskId, str],
        clocks: Mapping[str, HostClock],
    ) -> Iterator[tuple[str, Put]]:
        """Yield the statuses that are due, each with the host that gets it.

        Args:
            now_s: the launcher's monotonic clock.
            said: the newest status of a task, with the times of its host.
            places: the host of every task.
            clocks: those of the hosts that are up.
        """
        if now_s < self._next_s:
            return
        shared = [task for task in places if task.role is Role.PS]
        self._next_s = now_s + (SERVERS_EVERY_S if shared else REPLICAS_EVERY_S)
        readers = {host for task, host in places.items() if task.role is Role.CHIEF}
        if not shared or not readers:
            replicas = [task for task in places if task.role in TRAINING_ROLES]
            shared = shared or replicas
            readers = {places[task] for task in replicas}
        for task in shared:
            status = said(task)
            if status is None or places[task] not in clocks:
                continue
            for host in readers - {places[task]}:
                beat = status.get("attempt"), status.get("monotonic_s")
                if host in clocks and self._sent.get((host, task)) != beat:
                    self._sent[host, task] = beat
                    yield host, _put(task, status, clocks[places[task]].offset_s - clocks[host].offset_s)


def _put(task: TaskId, status: Mapping[str, Any], offset_s: float) -> Put:
    fields = {name: status[name] for name in FIELDS if name in status}
    path = f"tasks/{task.role}-{task.index}/status.json"
    return Put(path, json.dumps(rebased(fields, offset_s)).encode())
