"""The interface between the supervisor and the place where the tasks of a run live.

`dtrain_cli.targets.local` runs them as processes of this machine. A target with agents on other hosts has the
same interface: it sends each request to the agent of the task's host and returns what the agents report.
"""

from dataclasses import dataclass
from typing import Protocol

from dtrain.cluster import ClusterSpec
from dtrain.config import ClusterSection
from dtrain.process.start_protocol import Report
from dtrain_cli.plan.task_launch import TaskLaunch


class HasFileno(Protocol):
    """Something that a selector can watch."""

    def fileno(self) -> int:
        """Return the file descriptor."""


@dataclass(frozen=True)
class TargetFailed:
    """The target can start no task any more."""

    reason: str


Event = Report | TargetFailed
"""`Started`, `Exited` or `Refused` of one attempt of a task, or `TargetFailed`."""


class TaskHandle(Protocol):
    """One attempt of a task that a target was asked to start."""

    writes_stacks: bool
    """Whether SIGUSR1 makes it write its stacks from its first moment on, and never kills it."""

    def signal(self, number: int) -> None:
        """Send a signal to every process of the task. Without a process this does nothing."""


class Target(Protocol):
    """The place where the tasks of one run live."""

    def hold_addresses(self, cluster: ClusterSection) -> ClusterSpec:
        """Give every task of a cluster its address, and hold the ports until `close`.

        Raises:
            SpecError: an address of the spec cannot be used there; every such address is named.
            RunError: no ports could be had.
        """

    def release_addresses(self) -> None:
        """Let all ports go, for servers that cannot share them."""

    def host_of(self, launch: TaskLaunch) -> str:
        """Return the name of the host on which a task runs."""

    def start(self, launch: TaskLaunch) -> TaskHandle:
        """Start one attempt of a task; `Started` or `Refused` follows.

        Raises:
            OSError: its folder or log cannot be made, or no process can be started.
        """

    def wake_on(self, source: HasFileno) -> None:
        """Have `events` return as soon as `source` can be read."""

    def events(self, until_s: float) -> list[Event]:
        """Wait for events and return them, after `until_s` (monotonic) without any."""

    def close(self) -> None:
        """Kill all that is left of every task, wherever it went, and let the ports go. It may be repeated."""
