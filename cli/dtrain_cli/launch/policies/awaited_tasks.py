"""The tasks for which a cluster that stands still waits in the end. Pure."""

import re
from collections.abc import Mapping

from dtrain.messages.status import TaskStatus

SILENT_S = 10.0
"""A task that has said nothing for so long stands still itself, whatever it was waiting for before."""
_TASK = re.compile(r"\b(?:chief|worker|ps|evaluator):\d+\b")
_AT = " (at "


def tasks_in(awaited: str) -> list[str]:
    """Return the tasks that a text about a wait names."""
    return _TASK.findall(awaited)


def awaited_in_the_end(statuses: Mapping[str, TaskStatus], now_s: float) -> list[str]:
    """Return the tasks for which the others wait, found by following what each says it waits for.

    Where those who wait do so in a circle, these are the servers at which they wait and get no answer.

    Args:
        statuses: by task, of those that run.
        now_s: the monotonic clock, as in the statuses.
    """
    waiting = {
        task: said.waiting_for
        for task, said in statuses.items()
        if said.waiting_for and now_s - said.monotonic_s < SILENT_S
    }
    reached = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[0])}
    servers = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[2])}
    return sorted(reached - waiting.keys() or servers or reached)
