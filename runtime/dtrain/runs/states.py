"""The states of a run and of its tasks, and the kinds of failures, by their names in records and JSON."""

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run. `STALE`, for a run whose launcher died silently, is never written."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    STALE = "stale"


class TaskState(StrEnum):
    """The state of a task, as the process that started it sees it."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class FailureKind(StrEnum):
    """The cause that ended an attempt or a run.

    A crash explains a lost peer (`PEER_LOST`), never the other way round. `LAUNCHER` is a failure of the
    launcher's own, `HOST_LOST` one of a host to come back.
    """

    EXCEPTION = "exception"
    PEER_LOST = "peer_lost"
    SIGNAL = "signal"
    EXIT = "exit"
    START_TIMEOUT = "start_timeout"
    TIMEOUT = "timeout"
    LAUNCHER = "launcher"
    HOST_LOST = "host_lost"


LIVE_RUN_STATES = frozenset({RunState.PENDING, RunState.STARTING, RunState.RUNNING, RunState.STOPPING})
"""A run in one of these has not ended, unless its launcher died without a word."""
LIVE_TASK_STATES = frozenset(
    {TaskState.STARTING, TaskState.RUNNING, TaskState.RESTARTING, TaskState.STOPPING}
)
"""A task in one of these has a process, or will have one again."""
ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED})
"""A task in one of these never runs again."""
HAS_PROCESS = frozenset({TaskState.STARTING, TaskState.RUNNING, TaskState.STOPPING})
"""A task in one of these has a process, or is being given one."""
