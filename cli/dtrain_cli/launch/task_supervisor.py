"""The supervision of tasks at a target: they are started, started again by their rule, and ended in order.

An event comes (a process started or ended, a signal, a moment has passed), a pure policy decides
(`task_ends`, `policies`), and only this class and its subclasses act on it: a run has many tasks, and a
worker that joins one has itself alone.
"""

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dtrain.cluster import Role, TaskId
from dtrain.config import RunSpec
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.runs.files import FailureRecord, RunFiles
from dtrain.runs.states import FailureKind, RunState, TaskState
from dtrain_cli.launch.policies import ordered_stop
from dtrain_cli.launch.policies.ordered_stop import RemainingTask, RunStop
from dtrain_cli.launch.task_ends import TaskEnds
from dtrain_cli.launch.tasks import TaskLife, launcher_failure
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.runs.report import first_line
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox, signal_name
from dtrain_cli.targets.target import Event, Target

TICK_S = 0.2
NOT_EXECUTED = 127


class TaskSupervisor:
    """The owner of some tasks: one queue, one loop, one owner of all state."""

    def __init__(
        self,
        launches: Sequence[TaskLaunch],
        spec: RunSpec,
        leader: TaskId,
        target: Target,
        signals: SignalInbox,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives = {
            launch.task: TaskLife(launch, launch.attempt, target.host_of(launch)) for launch in launches
        }
        self.spec = spec
        self.foreign = launches[0].program is None
        self._files = RunFiles(launches[0].run_dir)
        self._ends = TaskEnds(spec, self._files.spec, leader, self.foreign, self.lives)
        self._clock = clock
        self._target = target
        self._signals = signals
        self._grace_s = grace_s
        self._order: RunStop | None = None
        self._asked_there = False
        self._changed = True
        target.wake_on(signals)

    def _say(self, text: str) -> None:
        raise NotImplementedError

    def _lose(self, life: TaskLife, why: FailureRecord, now_s: float) -> None:
        """Do what follows from a task that will not run again."""
        raise NotImplementedError

    def _answer(self, number: int, name: str) -> None:
        """Act on a signal that does not stop anything."""
        raise NotImplementedError

    def _stop_text(self, name: str) -> str:
        return f"{name}: stopping in order"

    def _note(self, kind: str, **facts: Any) -> None:
        """Keep an event, where a journal is kept."""

    def _supervise(self) -> None:
        """Start every task, and watch until all have ended."""
        # A fork server imports gRPC for the first task that needs it; tasks that it forks later share that.
        for life in sorted(self.lives.values(), key=lambda life: life.launch.needs_grpc):
            if self._order is None:
                if self._target.can_start(life.task):
                    self._start(life)
                else:
                    life.restart_s = self._clock()
                self._receive(0.0)  # hundreds of tasks take a while: Ctrl-C counts meanwhile
        while not self._over():
            self._receive(TICK_S)
            self._tick(self._clock())

    def _over(self) -> bool:
        return self._order is not None and all(life.ended for life in self.lives.values())

    def _receive(self, patience_s: float) -> None:
        events = self._target.events(self._clock() + patience_s)
        # Whatever has woken this process: a stop by Ctrl-Z, until SIGCONT, is a wait without events.
        self._changed |= bool(events)
        for number in self._signals.read():
            self._signalled(number, self._clock())
        for event in events:
            self._handle(event, self._clock())

    def _handle(self, event: Event, now_s: float) -> None:
        if not isinstance(event, Started | Exited | Refused):
            return
        life = self.lives[TaskId.parse(event.task)]
        if event.attempt != life.launch.attempt or not life.has_process:
            return
        if isinstance(event, Started):
            life.pid = event.pid
            self._note("started", task=event.task, attempt=event.attempt, pid=event.pid)
        elif isinstance(event, Refused):
            self._refused(life, event, now_s)
        else:
            self._exited(life, event, now_s)

    def _refused(self, life: TaskLife, event: Refused, now_s: float) -> None:
        life.exit_code = NOT_EXECUTED
        life.pid = None
        if self._order is not None:
            life.state = TaskState.STOPPED
            return
        life.failure = launcher_failure(FailureKind.EXIT, event.reason, NOT_EXECUTED, now_s, event.task)
        life.state = TaskState.FAILED
        self._lose(life, life.failure, now_s)

    def _exited(self, life: TaskLife, end: Exited, now_s: float) -> None:
        self._note("exited", task=end.task, attempt=end.attempt, status=end.status)
        life.read_status()  # its last words
        life.exit_code = end.exit_code
        life.pid = None
        judgement = self._ends.judge(life, end, self._order, now_s)
        life.state = judgement.state
        life.failure = judgement.failure or life.failure
        if judgement.word is not None:
            self._say(judgement.word)
        if judgement.restart is not None:
            life.restart_s = judgement.restart.at_s
            life.restarts_used = judgement.restart.count
            message = first_line(judgement.failure.message) if judgement.failure else "ended"
            wait = f"{judgement.restart.at_s - now_s:g} s"
            count = f"{judgement.restart.count} of {self._ends.rule(life.task).max}"
            self._say(f"{life.task} {message}; restarting in {wait} ({count})")
        elif judgement.failure is not None:
            self._lose(life, judgement.failure, now_s)

    def _signalled(self, number: int, now_s: float, host: str | None = None) -> None:
        """Stop at the first order, and kill at the second; an engine may give the first one to each host."""
        name = signal_name(number, host)
        if number not in STOP_SIGNALS:
            self._answer(number, name)
        elif self._order is None or self._order.patient:
            order = RunStop(RunState.STOPPED, 128 + number, now_s, self._grace_s)
            self._stop(order, f"{self._stop_text(name)}; a second signal kills at once")
            self._asked_there = host is not None
        elif self._asked_there or host:  # the same order
            self._asked_there = self._asked_there and host is not None
        else:
            self._order = replace(self._order, at_s=now_s, grace_s=0.0)
            self._say(f"{name} again: killing the tasks that are left")

    def _tick(self, now_s: float) -> None:
        """Act on what the time brings."""
        for life in self.lives.values():
            due = life.restart_s is not None and now_s >= life.restart_s
            if due and self._target.can_start(life.task):
                life.launch = life.launch.for_attempt(life.launch.attempt + 1)
                self._start(life)
            elif due and self._order is not None:
                self._start_no_more(life, self._order)

    def _read_statuses(self) -> None:
        for life in self.lives.values():
            life.read_status()
            if life.state == TaskState.STARTING and life.is_up:
                life.state = TaskState.RUNNING

    def _remaining(self) -> list[RemainingTask]:
        return [RemainingTask(life.task, life.stop_s) for life in self.lives.values() if not life.ended]

    def _advance_stop(
        self, order: RunStop, now_s: float, others: Sequence[RemainingTask] = ()
    ) -> list[tuple[TaskId, int]]:
        """Send the signals of an ordered stop that are due, and return them, with those to `others`."""
        due = ordered_stop.due(order, [*self._remaining(), *others], now_s)
        for task, number in due:
            if (life := self.lives.get(task)) is None:
                continue
            if life.pid is None:  # still being started: the signal is sent as soon as it is there
                life.state = TaskState.STOPPED if number == signal.SIGKILL else life.state
                continue
            if life.stop_s is None:
                life.stop_s = now_s
                life.state = TaskState.STOPPING
                self._note("told to stop", task=str(task), signal=signal.Signals(number).name)
            life.signal(number)
            life.signal(signal.SIGCONT)  # a paused task cannot leave
        return due

    def _start(self, life: TaskLife) -> None:
        life.state = TaskState.STARTING
        life.restart_s = None
        life.status = None
        life.started_s = self._clock()
        try:
            files = RunFiles(life.launch.run_dir)
            for of_another in (files.status(life.task), files.kill(life.task)):
                of_another.unlink(missing_ok=True)
            life.handle = self._target.start(life.launch)
        except OSError as error:
            reason = f"cannot be started: {error.strerror} ({error.filename or 'fork'})"
            self._refused(life, Refused(str(life.task), life.launch.attempt, reason), life.started_s)

    def _stop(self, order: RunStop, word: str | None) -> None:
        self._order = order
        if word:
            self._say(word)
        for life in self.lives.values():
            if life.state in (TaskState.PENDING, TaskState.RESTARTING):
                self._start_no_more(life, order)

    def _start_no_more(self, life: TaskLife, order: RunStop) -> None:
        """End a task without a process, unless it is an evaluator that can still evaluate the last one."""
        may_start = life.restart_s is not None and order.may_start_again(life.task.role, life.restart_s)
        if may_start and self._target.can_start(life.task):
            return
        life.restart_s = None
        life.state = TaskState.SUCCEEDED if order.patient else TaskState.STOPPED
        if not order.patient or (failure := life.failure) is None:
            return
        if life.task.role is Role.EVALUATOR or failure.kind is FailureKind.HOST_LOST:
            life.state = TaskState.FAILED
            self._lose(life, failure, order.at_s)
