"""The supervisor of a run: one queue, one loop, one owner of all state.

An event comes (a process started or ended, a signal, a moment has passed), a pure policy decides (`restart_policy`,
`success_rule`, `ordered_stop`, `start_watch`, `stall_watch`), and only here something is done about it.
"""

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dtrain.cluster import Role, TaskId
from dtrain.config import RestartSection, RunSpec
from dtrain.errors import RunError
from dtrain.run_files import FailureRecord, RunFiles, read_record
from dtrain.start_orders import Exited, Refused, Started
from dtrain_cli import ordered_stop, restart_policy, success_rule
from dtrain_cli.console import Console
from dtrain_cli.fault_schedule import FaultSchedule
from dtrain_cli.journal import Journal, now_text
from dtrain_cli.ordered_stop import StopOrder, Told
from dtrain_cli.outcome import Outcome, outcome_of
from dtrain_cli.plan import RunPlan
from dtrain_cli.processes import Event, SignalArrived, TaskProcesses, WarmProcessDied, needs_own_interpreter
from dtrain_cli.root_cause import MemoryKills, failure_of, own_record
from dtrain_cli.run_progress import RunProgress
from dtrain_cli.stall_watch import StallWatch
from dtrain_cli.start_watch import StartWatch
from dtrain_cli.task_life import TaskLife

TICK_S = 0.2
STATUS_EVERY_S = 0.5
NOT_EXECUTED = 127
WORD_MAX = 200
TIMEOUT, START_TIMEOUT = 124, 125
LAST_LINES_S = {True: 5.0, False: 1.0}
"""How long the workers of a program (True) or foreign command may take to end by themselves after the leader's success."""


@dataclass(frozen=True)
class Limits:
    """The times of one launch, in seconds; `timeout_s` is None for no limit."""

    timeout_s: float | None
    start_timeout_s: float
    stall_timeout_s: float
    grace_s: float
    evaluator_grace_s: float = 60.0


class Supervisor:
    """Runs a plan to its end. `run` is the loop; everything else is called from it."""

    def __init__(
        self,
        plan: RunPlan,
        processes: TaskProcesses,
        journal: Journal,
        console: Console,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives = {launch.task: TaskLife(launch, first_attempt=launch.attempt) for launch in plan.tasks}
        self.progress = RunProgress(self.lives)
        self.spec = plan.spec
        self._spec_file = RunFiles(plan.run.run_dir).spec
        self.foreign = plan.tasks[0].program is None
        self.started_s = clock()
        self._clock = clock
        self._processes = processes
        self._journal = journal
        self._console = console
        self._limits = limits
        self._host = socket.gethostname()
        self._order: StopOrder | None = None
        self._causes: list[FailureRecord] = []
        self._next_status_s = 0.0
        self._memory_kills = MemoryKills()
        self._start_watch = StartWatch(limits.start_timeout_s, self.started_s)
        self._stall_watch = StallWatch(limits.stall_timeout_s)
        self._faults = FaultSchedule(plan.spec.simulate)

    def run(self) -> Outcome:
        """Start every task, watch until the run has ended, and leave no process of it."""
        self._journal.record.state = "starting"
        self._record_tasks()
        for life in self.lives.values():
            if self._order is None:
                self._start(life)
                self._hear(0.0)  # hundreds of tasks take a while: Ctrl-C counts meanwhile
        while not self._over():
            self._hear(TICK_S)
            self._tick(self._clock())
        self._processes.close()
        return self._conclude()

    @property
    def state(self) -> str:
        """The run's state as CONTRACT names it."""
        return self._journal.record.state

    # What follows from an event

    def _hear(self, patience_s: float) -> None:
        for event in self._processes.wait(self._clock() + patience_s):
            self._handle(event, self._clock())

    def _handle(self, event: Event, now_s: float) -> None:
        if isinstance(event, SignalArrived):
            if event.number == signal.SIGCONT:  # after Ctrl-Z the shell has written to the terminal
                self._console.forget_screen()
            else:
                self._interrupted(event.number, now_s)
        elif isinstance(event, WarmProcessDied):
            text = f"the warm process (pid {event.pid}), from which every program is forked, has died"
            self._give_up(self._launcher_failure("launcher", text, 1), now_s)
        else:
            life = self.lives[TaskId.parse(event.task)]
            if event.attempt != life.launch.attempt or not life.has_process:
                return
            if isinstance(event, Started):
                life.pid = event.pid
                self._journal.event("started", task=event.task, attempt=event.attempt, pid=event.pid)
            elif isinstance(event, Refused):
                self._refused(life, event, now_s)
            else:
                self._exited(life, event, now_s)

    def _refused(self, life: TaskLife, event: Refused, now_s: float) -> None:
        life.exit_status = NOT_EXECUTED
        if self._order is not None:
            life.state = "stopped"
            return
        life.failure = self._launcher_failure("exit", event.reason, NOT_EXECUTED, str(life.task))
        self._failed_for_good(life, now_s)

    def _exited(self, life: TaskLife, end: Exited, now_s: float) -> None:
        self._journal.event("exited", task=end.task, attempt=end.attempt, status=end.status)
        life.read_status()  # its last words
        life.exit_status, life.pid = end.status, None
        if self._order is not None:
            self._exited_while_stopping(life, end, now_s)
            return
        rule, message = self._rule(life), "ended"
        if end.status != 0:
            life.failure = failure_of(life.launch, end, self._memory_kills.lately(now_s))
            message = _first_line(life.failure)
        restart = restart_policy.decide(rule, end.status, life.restarts_used, now_s - life.started_s, now_s, message)
        if end.status == 0 and (restart is None or life.task == success_rule.leader(self.spec)):
            life.state = "succeeded"
        elif restart is None:
            self._failed_for_good(life, now_s)
        else:
            life.state, life.restart_s, life.restarts_used = "restarting", restart.at_s, restart.count
            waits = f"restarting in {restart.at_s - now_s:g} s ({restart.count} of {rule.max})"
            self._console.say(f"{life.task} {message}; {waits}")

    def _exited_while_stopping(self, life: TaskLife, end: Exited, now_s: float) -> None:
        assert self._order is not None
        if self._order.state == "succeeded" or end.status == 0:
            life.state = "succeeded"
        elif life.stop_s is None or ((own := own_record(life.launch)) and own.monotonic_s < life.stop_s):
            life.state = "failed"  # before it was told: like the one that ended the run, and perhaps its cause
            life.failure = failure_of(life.launch, end, self._memory_kills.lately(now_s))
        else:
            life.state = "stopped"

    def _failed_for_good(self, life: TaskLife, now_s: float) -> None:
        assert life.failure is not None
        life.state = "failed"
        self._journal.event("failed", task=str(life.task), message=life.failure.message)
        states = {task: other.state for task, other in self.lives.items()}
        if success_rule.survives_without(self._spec_in_force(), life.task, states, self.foreign):
            consequence = "evaluation will be missing" if life.task.role is Role.EVALUATOR else "training goes on without it"
            self._console.say(f"{life.task} has failed: {_first_line(life.failure)}; {consequence}")
            return
        self._causes.append(life.failure)
        self._stop(
            StopOrder("failed", 1, now_s, self._limits.grace_s, {}),
            f"{life.task} failed: {_first_line(life.failure)}; stopping the others",
        )

    def _spec_in_force(self) -> RunSpec:
        """Return the spec with what the program has wished, as its leader writes it down; before that the launcher's own."""
        with contextlib.suppress(RunError, OSError):
            return read_record(self._spec_file, RunSpec) or self.spec
        return self.spec

    def _interrupted(self, number: int, now_s: float) -> None:
        name = "SIGINT (Ctrl-C)" if number == signal.SIGINT else signal.Signals(number).name
        if self._order is None or self._order.state == "succeeded":
            order = StopOrder("stopped", 128 + number, now_s, self._limits.grace_s, {})
            self._stop(order, f"{name}: stopping in order; once more kills at once")
        else:
            self._order = replace(self._order, at_s=now_s, grace_s=0.0)
            self._console.say(f"{name} again: killing what is left")

    # What follows from the passing of time

    def _tick(self, now_s: float) -> None:
        if now_s >= self._next_status_s:
            self._next_status_s = now_s + STATUS_EVERY_S
            self._memory_kills.look(now_s)
            self._read_statuses()
            self._carry_out_kill_orders()
        if self._order is None:
            self._restart_those_due(now_s)
            self._bring_about_faults(now_s)
            self._check_success(now_s)
            self._check_patience(now_s)
        if self._order is not None:
            self._advance_stop(self._order, now_s)
        self._console.pump()
        self._record_tasks()

    def _read_statuses(self) -> None:
        for life in self.lives.values():
            life.read_status()
            if life.state == "starting" and life.is_up:
                life.state = "running"
        if self.state == "starting" and all(life.is_up for life in self.lives.values()):
            self._journal.record.state = "running"
            self._journal.event("up")

    def _carry_out_kill_orders(self) -> None:
        for life in self.lives.values():
            if life.task.role is Role.PS and life.state == "running" and (order := life.kill_order()):
                self._console.say(f"{life.task} is killed: {order.reason}")
                self._journal.event("kill order", task=str(life.task), reason=order.reason)
                self._processes.signal(life.task, signal.SIGKILL)

    def _restart_those_due(self, now_s: float) -> None:
        for life in self.lives.values():
            if life.restart_s is not None and now_s >= life.restart_s:
                life.launch = life.launch.for_attempt(life.launch.attempt + 1)
                self._start(life)

    def _bring_about_faults(self, now_s: float) -> None:
        there = [life.task for life in self.lives.values() if life.pid is not None]
        for fault in self._faults.due(now_s - self.started_s, self.progress.step, there):
            self._console.say(f"simulate: {fault.task} {fault.text}")
            self._journal.event("fault", task=str(fault.task), signal=signal.Signals(fault.signal).name)
            self._processes.signal(fault.task, fault.signal)

    def _check_success(self, now_s: float) -> None:
        if success_rule.has_succeeded(self.spec, {task: life.state for task, life in self.lives.items()}):
            limits = self._limits
            leave_s = {
                Role.WORKER: min(limits.grace_s, LAST_LINES_S[not self.foreign]),
                Role.EVALUATOR: limits.evaluator_grace_s,
            }
            self._stop(StopOrder("succeeded", 0, now_s, limits.grace_s, leave_s), None)

    def _check_patience(self, now_s: float) -> None:
        limits = self._limits
        if limits.timeout_s is not None and now_s - self.started_s >= limits.timeout_s:
            text = f"not finished within {limits.timeout_s:g} s (--timeout)"
            self._give_up(self._launcher_failure("timeout", text, TIMEOUT), now_s)
        elif self.state == "starting":
            missing = {
                task: life.status.waiting_for if life.status else None for task, life in self.lives.items() if not life.is_up
            }
            if word := self._start_watch.word(missing, now_s):
                self._console.say(word)
            if late := self._start_watch.failure(missing, now_s):
                self._ask_for_stacks([self.lives[task] for task in missing])
                late += "" if self.foreign else "; the tasks' stacks are in their logs"
                first = self.lives[next(iter(missing))].launch
                failure = self._launcher_failure("start_timeout", late, START_TIMEOUT, str(first.task))
                failure.log = str(first.log)
                self._give_up(failure, now_s)
        else:
            self._check_progress(now_s)

    def _check_progress(self, now_s: float) -> None:
        training = [life for life in self.lives.values() if life.task.trains and life.state == "running"]
        text = self._stall_watch.look([life.status for life in training if life.status is not None], now_s)
        self._journal.record.stalled = self._stall_watch.stalled
        if text:
            self._console.say(text)
            self._journal.event("stalled", message=text)
            self._ask_for_stacks([life for life in self.lives.values() if life.state == "running"])

    def _ask_for_stacks(self, lives: list[TaskLife]) -> None:
        """Tasks write the stacks of their threads to their logs; a foreign command, and who is no task yet, would die of it."""
        self._console.leave_out_stacks()
        for life in lives:
            if life.status is not None or not needs_own_interpreter(life.launch):
                self._processes.signal(life.task, signal.SIGUSR1)

    def _advance_stop(self, order: StopOrder, now_s: float) -> None:
        there = [Told(life.task, life.stop_s) for life in self.lives.values() if life.has_process]
        self._warn_of(ordered_stop.reluctant(order, there, now_s))
        for task, number in ordered_stop.due(order, there, now_s):
            life = self.lives[task]
            if life.pid is None:  # still being started: it is told as soon as it is there
                life.state = "stopped" if number == signal.SIGKILL else life.state
                continue
            if life.stop_s is None:
                life.stop_s, life.state = now_s, "stopping"
                self._journal.event("told to stop", task=str(task), signal=signal.Signals(number).name)
            self._processes.signal(task, number)
            self._processes.signal(task, signal.SIGCONT)  # a paused task cannot leave

    def _warn_of(self, reluctant: list[TaskId]) -> None:
        slow = [self.lives[task] for task in reluctant if not self.lives[task].reluctant]
        for life in slow:
            life.reluctant = True
            where = "" if self.foreign else "; its stacks are in its log"
            self._console.say(f"{life.task} has not left yet{where}")
        if slow:
            self._ask_for_stacks(slow)

    # What is done

    def _start(self, life: TaskLife) -> None:
        life.state, life.restart_s, life.status = "starting", None, None
        life.started_s = self._clock()
        try:
            RunFiles(life.launch.run_dir).status(life.task).unlink(missing_ok=True)
            self._processes.start(life.launch)
        except OSError as error:
            reason = f"cannot be started: {error.strerror} ({error.filename or 'fork'})"
            self._refused(life, Refused(str(life.task), life.launch.attempt, reason), life.started_s)
            return
        self._console.follow(life.task, life.launch.log)

    def _stop(self, order: StopOrder, word: str | None) -> None:
        self._order = order
        self._journal.record.state = "stopping"
        self._journal.event("stopping", because=order.state)
        if word:
            self._console.say(word)
        for life in self.lives.values():
            if life.state in ("pending", "restarting"):
                life.state = "succeeded" if order.state == "succeeded" else "stopped"

    def _give_up(self, failure: FailureRecord, now_s: float) -> None:
        """End the run for a reason of the launcher's own, which no later failure of a task replaces."""
        if self._order is not None:
            return
        failure.monotonic_s = 0.0
        self._causes.append(failure)
        order = StopOrder("failed", failure.exit_code or 1, now_s, self._limits.grace_s, {})
        self._stop(order, failure.message)

    def _launcher_failure(self, kind: str, text: str, code: int, task: str = "launcher") -> FailureRecord:
        return FailureRecord(task, text, kind=kind, time=now_text(), monotonic_s=self._clock(), exit_code=code)

    def _rule(self, life: TaskLife) -> RestartSection:
        if self.foreign:
            return self.spec.restart.get(life.task.role.value, RestartSection(policy="never"))
        return self.spec.restart_of(life.task.role)

    def _over(self) -> bool:
        return self._order is not None and not any(life.has_process for life in self.lives.values())

    def _conclude(self) -> Outcome:
        assert self._order is not None
        outcome = outcome_of(self._order, self.lives.values(), self._causes)
        for text in self._faults.missed() if outcome.state == "succeeded" else ():
            self._console.say(f"simulate: {text}: the run was over before that was due, or seen to be")
        record = self._journal.record
        record.state, record.exit_code, record.failure = outcome.state, outcome.exit_code, outcome.failure
        record.ended, record.stalled = now_text(), None
        self._journal.event("ended", state=outcome.state, exit_code=outcome.exit_code)
        self._record_tasks()
        return outcome

    def _record_tasks(self) -> None:
        self._journal.record.tasks = [life.to_record(self._host) for life in self.lives.values()]
        self._journal.save()


def _first_line(failure: FailureRecord) -> str:
    line = failure.message.partition("\n")[0]
    return line if len(line) <= WORD_MAX else f"{line[:WORD_MAX]} ..."
