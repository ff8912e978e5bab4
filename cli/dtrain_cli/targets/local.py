"""The processes of this machine as a target, and those that the kernel has killed for memory.

A program forks from the fork server. A foreign command, and a program whose environment sets variables that
only a starting interpreter reads, is spawned under a guardian. Either way the same reports come back.
"""

import contextlib
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import LOOPBACK
from dtrain.config import ClusterSection
from dtrain.process import life_line, private_variables, start_protocol
from dtrain.process.resources import allow_open_files
from dtrain.process.start_protocol import Exited, Refused, Report, Started, StartTask
from dtrain.runs.files import RunFiles, SavedRecord
from dtrain_cli.plan.ports import HeldPorts, hold_addresses, pick_master_port
from dtrain_cli.plan.run_plan import HostShare, TaskLaunch
from dtrain_cli.targets.cold_start import LifeLine
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


class GuardedCommand:
    """One command that runs under a guardian; `ended` once the end of the command has been reported."""

    def __init__(self, launch: TaskLaunch, line: LifeLine) -> None:
        self.ended = False
        self._task = str(launch.task)
        self._attempt = launch.attempt
        self._reading_end, writing_end = os.pipe()
        self._lines = start_protocol.Lines(start_protocol.REPORTS.decode)
        fds: tuple[int, ...] = (line.reading_end, writing_end)
        names = (*map(str, fds), str(launch.task), str(launch.attempt))
        environment = {**os.environ, **launch.environment}
        private = private_variables.handed_over(launch.private) if launch.private else None
        if private is not None:
            environment[private_variables.DESCRIPTOR] = str(private)
            fds = (*fds, private)
        with open(launch.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dtrain_cli.targets.guardian", *names, *launch.command],
                env=environment,
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        os.close(writing_end)
        if private is not None:
            os.close(private)

    def fileno(self) -> int:
        return self._reading_end

    def reports(self) -> list[Report]:
        """Return the reports that have arrived; to be called when `fileno()` can be read."""
        data = os.read(self._reading_end, 1 << 16)
        reports = self._lines.feed(data)
        if not data:  # it was killed: its command died with it, and this process has adopted what that left
            reports.append(Exited(self._task, self._attempt, -signal.SIGKILL, 0))
        self.ended = any(isinstance(report, Exited | Refused) for report in reports)
        return reports

    def close(self) -> None:
        os.close(self._reading_end)


_LOOK_EVERY_S = 0.5
_OWN_FILES = 64
_FILES_PER_TASK = 2
"""A task costs a held port, and the pipe of its guardian."""


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

    def __init__(self, line: LifeLine, fork_server: ForkServer | None) -> None:
        life_line.adopt_orphans()
        self._line = line
        self._fork_server = fork_server
        self._host = socket.gethostname()
        self._tasks: dict[TaskId, LocalTask] = {}
        self._ports = HeldPorts()
        self._memory_kills = MemoryKills()
        self._next_look_s = 0.0
        self._selector = selectors.DefaultSelector()
        if fork_server is not None:
            self._selector.register(fork_server, selectors.EVENT_READ)

    def hold_addresses(self, cluster: ClusterSection) -> ClusterSpec:
        """Turn counts into addresses of the loopback interface, and hold every port."""
        allow_open_files(_OWN_FILES + _FILES_PER_TASK * sum(cluster.count(role) for role in Role))
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

    def can_start(self, task: TaskId) -> bool:
        return True

    def start(self, launch: TaskLaunch) -> LocalTask:
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        launch.log.touch(mode=0o600)
        own_interpreter = any(name.startswith("PYTHON") for name in launch.environment)  # read at its start
        if self._fork_server is not None and launch.program is not None and not own_interpreter:
            task = self._tasks[launch.task] = LocalTask(launch.attempt, forked=True)
            self._fork_server.send(_start_message(launch))
        else:
            task = self._tasks[launch.task] = LocalTask(launch.attempt, forked=False)
            self._selector.register(GuardedCommand(launch, self._line), selectors.EVENT_READ)
        return task

    def wake_on(self, source: HasFileno) -> None:
        self._selector.register(source, selectors.EVENT_READ)

    def events(self, until_s: float) -> list[Event]:
        unread = [self._fork_server] if self._fork_server is not None and self._fork_server.unread else []
        ready = self._selector.select(0.0 if unread else max(0.0, until_s - time.monotonic()))
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._memory_kills.poll(now_s)
        events: list[Event] = []
        for source in dict.fromkeys([*unread, *(key.fileobj for key, _ in ready)]):
            if isinstance(source, ForkServer):
                events += self._read_fork_server(source)
            elif isinstance(source, GuardedCommand):
                events += source.reports()
                if source.ended:
                    self._selector.unregister(source)
                    source.close()
        events += self._reap()
        return [self._noted(event, now_s) for event in events]

    def finish(self, say: Callable[[str], None]) -> None:
        self.close()

    def close(self) -> None:
        """Kill all that is left of every task, wherever it went, and the fork server; let the ports go."""
        if self._fork_server is not None:
            self._fork_server.kill()
        life_line.kill_children()
        self._selector.close()
        self._ports.close()

    def _read_fork_server(self, server: ForkServer) -> list[Event]:
        events: list[Event] = [*server.reports()]
        if not server.alive:
            self._selector.unregister(server)
            reason = f"the fork server (pid {server.pid}), from which every program is forked, has died"
            events.append(TargetFailed(reason))
            server.kill()  # a warm one's keeper reaps its tasks, and not this process
            for name, task in self._tasks.items():
                if task.writes_stacks and task.awaited:
                    events.append(Refused(str(name), task.attempt, "the fork server has died"))
                elif task.writes_stacks and task.pid is not None:
                    events.append(Exited(str(name), task.attempt, -signal.SIGKILL, 0))
        return events

    def _noted(self, event: Event, now_s: float) -> Event:
        if not isinstance(event, Report):
            return event
        self._tasks[TaskId.parse(event.task)].note(event)
        if isinstance(event, Exited) and event.status != 0 and self._memory_kills.lately(now_s):
            return msgspec.structs.replace(event, killed_for_memory=True)
        return event

    def _reap(self) -> list[Exited]:
        """Reap ended guardians, and adopted children of killed ones; return the ends of tasks among them."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (child := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, usage = child
                for name, task in self._tasks.items():
                    if task.pid == pid:
                        code = os.waitstatus_to_exitcode(status)
                        ended.append(Exited(str(name), task.attempt, code, usage.ru_maxrss * 1024))
        return ended


def _start_message(launch: TaskLaunch) -> StartTask:
    return StartTask(
        task=str(launch.task),
        attempt=launch.attempt,
        argv=[str(launch.program), *launch.arguments],
        environment=dict(launch.environment),
        private=dict(launch.private),
        cwd=str(launch.cwd),
        log=str(launch.log),
        needs_grpc=launch.needs_grpc,
    )
