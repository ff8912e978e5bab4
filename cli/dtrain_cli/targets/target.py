"""The interface between the supervisor and the place where the tasks of a run live.

`dtrain_cli.targets.local` runs them as processes of this machine; `dtrain_cli.fleet.target` sends each
request to the agent of the task's host and returns what the agents report.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ClusterSection
from dtrain.process.start_protocol import Report
from dtrain.runs.files import RunFiles, SavedRecord
from dtrain_cli.plan.run_plan import HostShare, TaskLaunch


class HasFileno(Protocol):
    """Something that a selector can watch."""

    def fileno(self) -> int: ...


class TargetFailed(msgspec.Struct, frozen=True):
    """The target can start no task any more."""

    reason: str


class HostLost(msgspec.Struct, frozen=True):
    """A host is lost, and these tasks with it.

    `replaced` names the spare host that can take its place as the run is started again; without one, the
    tasks can start again when the host `may_return`.
    """

    reason: str
    tasks: list[TaskId]
    replaced: dict[str, str] = {}
    may_return: bool = True


class HostNews(msgspec.Struct, frozen=True):
    """News of a host on which tasks run: its kind in a word, and a sentence for the user."""

    kind: str
    host: str
    text: str


class StopAsked(msgspec.Struct, frozen=True):
    """An order to stop the run that has reached one of its hosts. An engine that ends a job signals all its
    processes, so that the same order may reach the launcher too.
    """

    number: int
    host: str


Event = Report | TargetFailed | HostLost | HostNews | StopAsked
"""`Started`, `Exited` or `Refused` of one attempt of a task, or news of the target."""


class TaskHandle(Protocol):
    """One attempt of a task that a target was asked to start."""

    writes_stacks: bool
    """Whether SIGUSR2 makes it write its stacks from its first moment on, and never kills it."""

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

    def master(self) -> tuple[str, int]:
        """Return a host and a free port, not held, for PyTorch's server; raise a `RunError` without one."""

    def left_there(self, task: TaskId) -> str | None:
        """Return in words where a task's run directory is, if not on this machine."""

    def newest(self, files: RunFiles) -> SavedRecord | None:
        """Return the newest checkpoint where the leader starts; None: there is none."""

    def release_addresses(self) -> None:
        """Let all ports go, for servers that cannot share them."""

    def shares(self) -> Mapping[TaskId, HostShare]:
        """Return what each task has of its host; nothing where all share the cores of this machine."""

    def host_of(self, launch: TaskLaunch) -> str:
        """Return the name of the host on which a task runs."""

    def heard_s(self, task: TaskId) -> float:
        """Return the last moment (monotonic, here) of which a task's host has told all that its task says."""

    def can_start(self, task: TaskId) -> bool:
        """Return whether a task's host can start it now; where it cannot, it may later."""

    def start(self, launch: TaskLaunch) -> TaskHandle:
        """Start one attempt of a task; `Started` or `Refused` follows. An `OSError` says why neither can."""

    def wake_on(self, source: HasFileno) -> None:
        """Have `events` return as soon as `source` can be read."""

    def events(self, until_s: float) -> list[Event]:
        """Wait for events and return them, after `until_s` (monotonic) without any."""

    def finish(self, say: Callable[[str], None]) -> None:
        """Copy what the leader has written elsewhere into the working directory here, and `close`."""

    def close(self) -> None:
        """Kill all that is left of every task, wherever it went, and let the ports go. It may be repeated."""
