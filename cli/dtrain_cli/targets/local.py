"""The processes of a run, as the supervisor handles them: start one, signal one, hear of all.

A program forks from the fork server. A foreign command, and a program whose environment sets variables that
only a starting interpreter reads, is spawned under a guardian. Either way the same reports come back.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from dtrain.cluster import TaskId
from dtrain.process import life_line, start_protocol
from dtrain.process.start_protocol import Exited, Refused, Report, Started, StartTask
from dtrain_cli.plan.task_launch import TaskLaunch
from dtrain_cli.targets.fork_server import ForkServer, LifeLine

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
HEARD = (*STOP_SIGNALS, signal.SIGCONT)


@dataclass(frozen=True)
class SignalArrived:
    """The launcher itself was signalled."""

    number: int


@dataclass(frozen=True)
class ForkServerDied:
    """No program can be started any more."""

    pid: int


Event = Report | SignalArrived | ForkServerDied


class SignalInbox:
    """Signals to the launcher, as events instead of interruptions."""

    def __init__(self) -> None:
        self._reading_end, writing_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        for number in HEARD:
            if (
                number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            ):  # `nohup` stays what it is
                signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        """For a selector."""
        return self._reading_end

    def read(self) -> list[SignalArrived]:
        """What has arrived, in order."""
        try:
            numbers = os.read(self._reading_end, 4096)
        except BlockingIOError:
            return []
        return [SignalArrived(number) for number in numbers if number in HEARD]


class Guardian:
    """The launcher's side of one guardian process (`dtrain_cli.targets.guardian`).

    Attributes:
        ended: whether everything has been reported.
    """

    def __init__(self, launch: TaskLaunch, line: LifeLine) -> None:
        self.ended = False
        self._task, self._attempt = str(launch.task), launch.attempt
        self._reading_end, writing_end = os.pipe()
        self._lines = start_protocol.Lines()
        fds = (line.reading_end, writing_end)
        names = (*map(str, fds), str(launch.task), str(launch.attempt))
        with open(launch.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dtrain_cli.targets.guardian", *names, *launch.command],
                env={**os.environ, **launch.environment},
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        os.close(writing_end)

    def fileno(self) -> int:
        """For a selector."""
        return self._reading_end

    def reports(self) -> list[Report]:
        """What has arrived; call it when `fileno()` is readable."""
        data = os.read(self._reading_end, 1 << 16)
        reports = [start_protocol.decode_report(line) for line in self._lines.feed(data)]
        if not data:  # it was killed: its command died with it, and what that left is adopted by the launcher
            reports.append(Exited(self._task, self._attempt, -signal.SIGKILL, 0))
        self.ended = any(isinstance(report, Exited | Refused) for report in reports)
        return reports

    def close(self) -> None:
        """Stop listening."""
        os.close(self._reading_end)


class LocalTarget:
    """Starts, signals and hears of the tasks' processes.

    Attributes:
        pids: the running process of every task that has one: the leader of its session and group.
    """

    def __init__(self, line: LifeLine, fork_server: ForkServer | None, inbox: SignalInbox) -> None:
        life_line.adopt_orphans()
        self._line = line
        self._fork_server = fork_server
        self._inbox = inbox
        self._forking: dict[
            TaskId, int
        ] = {}  # ordered attempts of which the fork server has not said anything yet
        self._attempts: dict[TaskId, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox, selectors.EVENT_READ)
        if fork_server is not None:
            self._selector.register(fork_server, selectors.EVENT_READ)
        self.pids: dict[TaskId, int] = {}

    def start(self, launch: TaskLaunch) -> None:
        """Start one attempt of a task; `Started` or `Refused` follows.

        Raises:
            OSError: its folder or log cannot be made, or no process can be started.
        """
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        launch.log.touch(mode=0o600)
        self._attempts[launch.task] = launch.attempt
        if self._fork_server is not None and not needs_own_interpreter(launch):
            arguments = [str(launch.program), *launch.arguments]
            order = StartTask(
                task=str(launch.task),
                attempt=launch.attempt,
                argv=arguments,
                environment=dict(launch.environment),
                cwd=str(launch.cwd),
                log=str(launch.log),
                needs_grpc=launch.needs_grpc,
            )
            self._forking[launch.task] = launch.attempt
            self._fork_server.send(order)
        else:
            self._selector.register(Guardian(launch, self._line), selectors.EVENT_READ)

    def signal(self, task: TaskId, number: int) -> None:
        """Send a signal to everything in a task's group, also when its leader is gone."""
        if (pid := self.pids.get(task)) is None:
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # forked, and not yet the leader of its group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, until_s: float) -> list[Event]:
        """What happened, as soon as something has, at the latest at `until_s` (monotonic)."""
        unread = [self._fork_server] if self._fork_server is not None and self._fork_server.unread else []
        ready = self._selector.select(0.0 if unread else max(0.0, until_s - time.monotonic()))
        events: list[Event] = [
            *self._inbox.read()
        ]  # ready or not: a stop, until SIGCONT, is a wait that ends with nothing
        for source in dict.fromkeys([*unread, *(key.fileobj for key, _ in ready)]):
            if isinstance(source, ForkServer):
                events += self._hear_fork_server(source)
            elif isinstance(source, Guardian):
                events += self._hear_guardian(source)
        events += self._reap()
        for event in events:
            self._note(event)
        return events

    def close(self) -> None:
        """Kill whatever is left of all tasks, wherever it went, and the fork server."""
        life_line.kill_children()
        self._selector.close()

    def _hear_fork_server(self, server: ForkServer) -> list[Event]:
        events: list[Event] = [*server.reports()]
        if not server.alive:
            self._selector.unregister(server)
            events.append(ForkServerDied(server.pid))
            events += [
                Refused(str(task), attempt, "the fork server has died")
                for task, attempt in self._forking.items()
            ]
        return events

    def _hear_guardian(self, guardian: Guardian) -> list[Event]:
        reports = guardian.reports()
        if guardian.ended:
            self._selector.unregister(guardian)
            guardian.close()
        return [*reports]

    def _note(self, event: Event) -> None:
        if isinstance(event, SignalArrived | ForkServerDied):
            return
        task = TaskId.parse(event.task)
        self._forking.pop(task, None)
        if isinstance(event, Started):
            self.pids[task] = event.pid
        elif isinstance(event, Exited) and (pid := self.pids.pop(task, None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # the group is dead before a successor starts

    def _reap(self) -> list[Exited]:
        """Guardians that have ended, and what was adopted from a killed guardian or fork server: tasks among
        it.
        """
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (child := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, usage = child
                for task in [task for task, leader in self.pids.items() if leader == pid]:
                    code = os.waitstatus_to_exitcode(status)
                    ended.append(Exited(str(task), self._attempts[task], code, usage.ru_maxrss * 1024))
        return ended


def needs_own_interpreter(launch: TaskLaunch) -> bool:
    """Whether a task cannot be forked: a foreign command, or variables that Python reads only when it
    starts.
    """
    return launch.program is None or any(name.startswith("PYTHON") for name in launch.environment)
