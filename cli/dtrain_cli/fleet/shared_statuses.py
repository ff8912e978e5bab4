"""The statuses of servers on other hosts, for the chief, who orders that one be killed which does not answer.

On one machine the chief reads the server's file; here the launcher passes on the fields that it reads.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dtrain.cluster import Role, TaskId
from dtrain_cli.agent.messages import Put
from dtrain_cli.fleet.mirror import HostClock, rebased

SERVERS_EVERY_S = 1.0
"""Well below the lease at a control host, after which a silent server may be killed."""
FIELDS = ("task", "pid", "host", "attempt", "phase", "monotonic_s")


class SharedStatuses:
    """The passing on of servers' statuses in one run."""

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
        self._next_s = now_s + SERVERS_EVERY_S
        readers = {host for task, host in places.items() if task.role is Role.CHIEF}
        for task in [task for task in places if task.role is Role.PS]:
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
