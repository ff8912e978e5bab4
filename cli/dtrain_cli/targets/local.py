"""The processes of this machine as a target, and those that the kernel has killed for memory.

All start at the fork server: a program by a fork; a foreign command, and a program whose environment sets
variables that only a starting interpreter reads, under a guardian. Either way the same reports come back.
"""

import contextlib
import math
import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import LOOPBACK
from dtrain.config import ClusterSection
from dtrain.process import life_line
from dtrain.process.resources import allow_open_files
from dtrain.process.start_protocol import Exited, Refused, Report, Started, StartTask
from dtrain.runs.files import RunFiles, SavedRecord
from dtrain_cli.plan.ports import HeldPorts, hold_addresses, pick_master_port
from dtrain_cli.plan.run_plan import HostShare, TaskLaunch
from dtrain_cli.targets.fork_server import ForkServer
from dtrain_cli.targets.target import Event, HasFileno, TargetFailed

LATELY_S = 5.0
"""A process that is killed for memory may need so long to free it and end."""
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """The kernel's counts of processes that it has killed for memory, here and in the whole machine."""

    def __init__(self) -> None:
        self._files = (*_memory_files(), _MACHINE)
        self._counted = self._count()
        self._rose_s = -math.inf

    def poll(self, now_s: float) -> None:
        """Read the counts. To be called often: a kill is as recent as the call that saw it."""
        before = self._counted
        self._counted = self._count()
        if self._counted > before:
            self._rose_s = now_s

    def lately(self, now_s: float) -> bool:
        self.poll(now_s)
        return now_s - self._rose_s <= LATELY_S

    def _count(self) -> int:
        counts = [0]
        for path in self._files:
            with contextlib.suppress(OSError):
                counts += map(int, _KILLS.findall(path.read_text()))
        return sum(counts)


def _memory_files() -> Iterable[Path]:
    """Yield memory.events (v2) or memory.oom_control (v1) of this process's control groups."""
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield _CGROUPS / group.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield _CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control"


_LOOK_EVERY_S = 0.5
_OWN_FILES = 64


class LocalTask:
    """The handle of one attempt of a task, of which `awaited` says that no report has come yet.

    `pid` is its process, the leader of its session and group; None before the start and after the end.
    """

    def __init__(self, attempt: int, forked: bool) -> None:
        self.attempt = attempt
        self.writes_stacks = forked
        self.awaited = True
        self.pid: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal to everything in the task's group, also when its leader is gone."""
        if self.pid is None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # forked, and not yet the leader of its group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def note(self, report: Report) -> None:
        self.awaited = False
        if isinstance(report, Started):
            self.pid = report.pid
        elif isinstance(report, Exited) and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # the group is dead before a successor starts
            self.pid = None


class LocalTarget:
    """The tasks of a run as processes of this machine.

    The calling process adopts their orphans, and must have no other children.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        life_line.adopt_orphans()
        self._fork_server = fork_server
        self._host = socket.gethostname()
        self._tasks: dict[TaskId, LocalTask] = {}
        self._ports = HeldPorts()
        self._memory_kills = MemoryKills()
        self._next_look_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(fork_server, selectors.EVENT_READ)

    def hold_addresses(self, cluster: ClusterSection) -> ClusterSpec:
        """Turn counts into addresses of the loopback interface, and hold every port."""
        allow_open_files(_OWN_FILES + sum(cluster.count(role) for role in Role))
        addresses, self._ports = hold_addresses(cluster)
        return addresses

    def master(self) -> tuple[str, int]:
        return LOOPBACK, pick_master_port()

    def left_there(self, task: TaskId) -> None:
        """Return nothing: all files are here."""

    def newest(self, files: RunFiles) -> SavedRecord | None:
        step = files.newest_step
        return None if step is None else SavedRecord(step, f"on {self._host} in {files.directory}")

    def release_addresses(self) -> None:
        self._ports.close()

    def shares(self) -> Mapping[TaskId, HostShare]:
        return {}

    def host_of(self, launch: TaskLaunch) -> str:
        return self._host

    def heard_s(self, task: TaskId) -> float:
        return time.monotonic()

    def can_start(self, task: TaskId) -> bool:
        return True

    def start(self, launch: TaskLaunch) -> LocalTask:
        return self.start_ordered(start_order(launch))

    def start_ordered(self, order: StartTask) -> LocalTask:
        log = Path(order.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)
        task = self._tasks[TaskId.parse(order.task)] = LocalTask(order.attempt, forked=not order.executed)
        self._fork_server.order(order)
        return task

    def wake_on(self, source: HasFileno) -> None:
        self._selector.register(source, selectors.EVENT_READ)

    def events(self, until_s: float) -> list[Event]:
        server = self._fork_server
        ready = self._selector.select(0.0 if server.unread else max(0.0, until_s - time.monotonic()))
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._memory_kills.poll(now_s)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # what a fork server that has died has left
                pass
        if not server.unread and all(key.fileobj is not server for key, _ in ready):
            return []
        return [self._noted(event, now_s) for event in self._read_fork_server(server)]

    def finish(self, say: Callable[[str], None]) -> None:
        self.close()

    def close(self) -> None:
        """Kill all that is left of every task, wherever it went, and the fork server; let the ports go."""
        self._fork_server.kill()
        life_line.kill_children()
        self._selector.close()
        self._ports.close()

    def _read_fork_server(self, server: ForkServer) -> list[Event]:
        events: list[Event] = [*server.reports()]
        if server.over:
            self._selector.unregister(server)
            reason = f"the fork server (pid {server.pid}), from which every task starts, has died"
            events.append(TargetFailed(reason))
            server.kill()  # a warm one's keeper reaps its tasks, and not this process
            for name, task in self._tasks.items():
                if task.awaited:
                    events.append(Refused(str(name), task.attempt, "the fork server has died"))
                elif task.pid is not None:
                    events.append(Exited(str(name), task.attempt, -signal.SIGKILL, 0))
        return events

    def _noted(self, event: Event, now_s: float) -> Event:
        if not isinstance(event, Report):
            return event
        self._tasks[TaskId.parse(event.task)].note(event)
        if isinstance(event, Exited) and event.status != 0 and self._memory_kills.lately(now_s):
            return msgspec.structs.replace(event, killed_for_memory=True)
        return event


def start_order(launch: TaskLaunch) -> StartTask:
    own_interpreter = any(name.startswith("PYTHON") for name in launch.environment)  # read at its start
    executed = launch.program is None or own_interpreter
    return StartTask(
        task=str(launch.task),
        attempt=launch.attempt,
        argv=list(launch.command) if executed else [str(launch.program), *launch.arguments],
        environment=dict(launch.environment),
        private=dict(launch.private),
        cwd=str(launch.cwd),
        log=str(launch.log),
        needs_grpc=launch.needs_grpc,
        executed=executed,
    )
