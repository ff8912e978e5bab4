"""The supervisor of a run.

It adds to the supervision of tasks what many of them have in common: success, patience, checkpoints, lost
hosts, workers that have joined, and what is said and kept of all that.
"""

import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from dtrain.cluster import TRAINING_ROLES, Role, TaskId
from dtrain.messages.membership import NEXT_CHECKPOINT
from dtrain.runs.files import FailureRecord, SavedRecord
from dtrain.runs.joined import arrival_text
from dtrain.runs.states import LIVE_RUN_STATES, FailureKind, RunState, TaskState
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.launch.join import JoinedWorkers, departure_text
from dtrain_cli.launch.policies import ordered_stop
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.policies.outcomes import RunOutcome, outcome_of
from dtrain_cli.launch.policies.patience import Late, LaunchLimits, Patience
from dtrain_cli.launch.run_progress import Hints, RunProgress
from dtrain_cli.launch.task_supervisor import TaskSupervisor
from dtrain_cli.launch.tasks import TaskLife, TaskPlaces, launcher_failure
from dtrain_cli.plan.run_plan import RunPlan
from dtrain_cli.runs.advice import LastingAdvice
from dtrain_cli.runs.faults import FaultSchedule
from dtrain_cli.runs.index import Journal
from dtrain_cli.runs.report import first_line
from dtrain_cli.targets.signals import NOTICES, STOP_SIGNALS, SignalInbox
from dtrain_cli.targets.target import Event, HostLost, HostNews, StopAsked, Target, TargetFailed

MANY = 50
STATUS_EVERY_S = {True: 1.0, False: 0.5}
"""The time between two looks at the files of many tasks (True), or of fewer: each costs the same."""
EVALUATOR_GRACE_S = 60.0
IDLE_EVALUATOR_GRACE_S = 3.0
LAST_LINES_S = {True: 5.0, False: 1.0}
"""The longest wait for workers of a program (True) or foreign command after the leader's success."""


class Supervisor(TaskSupervisor):
    """The owner of a run: `run` is the loop that takes a plan to its end, and calls everything else."""

    def __init__(
        self,
        plan: RunPlan,
        target: Target,
        signals: SignalInbox,
        journal: Journal,
        console: RunConsole,
        limits: LaunchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(plan.tasks, plan.spec, plan.leader, target, signals, limits.grace_s, clock)
        self._joined = JoinedWorkers(self._files, self.lives)
        self.progress = RunProgress(self.lives, lambda: self._joined.rows(self._ended))
        self.started_s = clock()
        self._begins_at = 0 if journal.record.saved is None else journal.record.saved.step
        self._journal = journal
        self._console = console
        self._limits = limits
        self.replaced: dict[str, str] = {}
        """The spare host of each lost one, if the run is to be started again so."""
        self._answered: set[int] = set()
        self._causes: list[FailureRecord] = []
        self._next_status_s = 0.0
        self._task_places: TaskPlaces | None = None
        self._patience = Patience(limits, self.lives, self.started_s, plan.spec)
        self._faults = FaultSchedule(plan.spec.simulate)
        self._hints = Hints(plan.spec, {} if journal.record.saved else self.lives)
        self.advice = LastingAdvice()

    def run(self) -> RunOutcome:
        """Start every task, watch until the run has ended, and leave no process of it."""
        self._journal.record.state = RunState.STARTING
        self._record_tasks()
        self._supervise()
        self._target.finish(self._console.say)
        return self._conclude()

    @property
    def state(self) -> RunState:
        return self._journal.record.state

    @property
    def _ended(self) -> RunState | None:
        return None if self.state in LIVE_RUN_STATES else self.state

    def _handle(self, event: Event, now_s: float) -> None:
        if isinstance(event, TargetFailed):
            self.replaced = {}
            if self._order is None:
                self._give_up(Late(FailureKind.LAUNCHER, event.reason, 1, ()), now_s)
        elif isinstance(event, HostLost):
            self._lose_host(event, now_s)
        elif isinstance(event, StopAsked):
            self._signalled(event.number, now_s, event.host)
        elif isinstance(event, HostNews):
            self._patience.news_of_host(event, now_s)
            self._say(event.text)
            self._note("host", host=event.host, what=event.kind)
        else:
            super()._handle(event, now_s)

    def _lose_host(self, lost: HostLost, now_s: float) -> None:
        """Stop the run, for another start with a spare host or for good, if it cannot wait for a lost one."""
        names = ", ".join(map(str, lost.tasks))
        if self._order is not None:
            self.replaced = (self.replaced and lost.replaced) and self.replaced | lost.replaced
            return
        self.replaced = lost.replaced
        if lost.replaced:
            (spare,) = lost.replaced.values()
            what = f"the run stops, and starts again with the spare host {spare} in its place"
        elif lost.may_return and self._ends.waits_for(lost.tasks):
            self._ends.away.update(lost.tasks)
            self._say(f"{lost.reason}; training goes on, and it is awaited for {names}")
            return
        else:
            what = f"training cannot go on without {names}, and no spare host takes its place"
        self._give_up(Late(FailureKind.HOST_LOST, f"{lost.reason}: {what}", 1, ()), now_s)

    def _lose(self, life: TaskLife, why: FailureRecord, now_s: float) -> None:
        """Say that a task will not run again, and stop the run if it cannot do without."""
        life.lost = why
        self._note(life.state, task=str(life.task), message=why.message)
        word = f"{life.task} has failed: {first_line(why.message)}"
        if life.state == TaskState.STOPPED:
            word = f"{life.task} received a SIGTERM that this launcher did not send, and has stopped"
        if self._order is not None:
            if self._order.patient:
                self._say(f"{word}; the run has succeeded without it")
        elif self._ends.goes_on_without(life.task, why):
            evaluator = life.task.role is Role.EVALUATOR
            without = "evaluation will be missing" if evaluator else "training continues without it"
            self._say(f"{word}; {without}")
        else:
            self._causes.append(why)
            others = "stopping the others"
            if self._ends.needed_in_a_loop(life.task):
                others += ", as a loop of the program's own needs every replica"
            word = f"{word.replace(' has failed:', ' failed:')}; {others}"
            self._stop(RunStop(RunState.FAILED, 1, now_s, self._limits.grace_s), word)

    def _say(self, text: str) -> None:
        self._console.say(text)

    def _note(self, kind: str, **facts: Any) -> None:
        self._journal.event(kind, **facts)

    def _signalled(self, number: int, now_s: float, host: str | None = None) -> None:
        if number in STOP_SIGNALS and self.replaced:  # then the run is not started again
            self.replaced, self._order = {}, None
        super()._signalled(number, now_s, host)

    def _answer(self, number: int, name: str) -> None:
        """Pass a notice on to the tasks, of which dtrain's own save a checkpoint; ignore other signals."""
        if number in NOTICES:
            lives = [life for life in self.lives.values() if life.state == TaskState.RUNNING]
            reached = self._signal_all(lives, number if self.foreign else signal.SIGUSR1)
            saves = "; the leader saves a checkpoint" if reached and not self.foreign else ""
            self._say(f"{name}: passed on to {reached} of {len(self.lives)} tasks{saves}")
        elif number not in self._answered:
            self._answered.add(number)
            self._say(f"{name}: has no effect on a launch; SIGTERM stops it in order")

    def _signal_all(self, lives: Iterable[TaskLife], number: int) -> int:
        """Send a signal to tasks, but for those of dtrain that it would kill yet; return how many got it."""
        ready = [
            life
            for life in lives
            if self.foreign
            or life.status is not None
            or (life.handle is not None and life.handle.writes_stacks)
        ]
        for life in ready:
            life.signal(number)
        return len(ready)

    def _tick(self, now_s: float) -> None:
        if now_s >= self._next_status_s:
            self._next_status_s = now_s + STATUS_EVERY_S[len(self.lives) >= MANY]
            self._changed = True
            self._look(now_s)
            self._kill_those_that_stand_still(now_s)
        super()._tick(now_s)
        if self._order is None:
            self._bring_about_faults(now_s)
        self._check_patience(now_s)
        if self._changed or self._order is not None:  # of idle tasks, judging them all would cost most
            self._judge(now_s)
        self._console.pump()

    def _judge(self, now_s: float) -> None:
        self._changed = False
        if self._order is None:
            for life in self.lives.values():
                if self._order is None and (why := self._ends.left_behind(life)):
                    life.state = TaskState.FAILED
                    life.failure = why
                    self._lose(life, why, now_s)
            self._check_success(now_s)
        if self._order is not None:
            self._stop_further(self._order, now_s)
        self._record_tasks()

    def _look(self, now_s: float) -> None:
        self._read_statuses()
        self._announce_joined_workers()
        self._note_progress()
        if self._order is None:
            self.advice.look(self.progress.rows(), self.progress.step)
        for text in self._hints.due(self._journal.record.saved, self.progress.step, now_s):
            self._say(text)
        if self.state is RunState.STARTING and all(life.is_up for life in self.lives.values()):
            self._journal.record.state = RunState.RUNNING
            self._note("up")

    def _announce_joined_workers(self) -> None:
        for record in self._joined.new():
            self._say(arrival_text(record))
            self._note("joined", task=record.task, pid=record.pid, host=record.host)
        for record in self._joined.lost() if self._order is None else ():
            self._say(departure_text(record))
            self._note(record.state, task=record.task, message=record.message)

    def _note_progress(self) -> None:
        """Note the first step and the newest checkpoint, and say when none can be saved any more, or again.

        The leader's own warning is lost where its log is on the same full disk.
        """
        if (self.progress.step or 0) > self._begins_at:
            self._files.kept_spec.unlink(missing_ok=True)
        record = self._journal.record
        if (saved := self.progress.saved) and (record.saved is None or saved[0] != record.saved.step):
            step, life = saved
            where = self._target.left_there(life.task) or f"on {life.host} in {life.launch.run_dir}"
            record.saved = SavedRecord(step, where)
        steps = self.progress.rolled_back()  # a run that is resumed begins with those of earlier launches
        if steps and self.state is not RunState.STARTING:
            self._note("rolled back", steps=steps, step=self.progress.step)
        if (news := self.progress.news_of_saving()) is not None:
            text, kind, facts = news
            self._say(text)
            self._note(kind, **facts)

    def _kill_those_that_stand_still(self, now_s: float) -> None:
        stuck = self._patience.stuck(now_s)
        for life in self.lives.values():
            if life.state != TaskState.RUNNING:
                continue
            found, attempt = stuck.get(str(life.task)), life.launch.attempt
            if found is None:
                life.stuck.pop(attempt, None)
            elif attempt not in life.stuck:
                life.stuck[attempt] = found
                self._ask_for_stacks([life])  # it has until the next poll to write them
                continue
            if (request := found or life.kill_request(self._target.heard_s(life.task))) is not None:
                life.state = TaskState.STOPPING
                self._say(f"{life.task} is killed: {request.reason}")
                self._note("kill order", task=str(life.task), reason=request.reason)
                life.signal(signal.SIGKILL)

    def _bring_about_faults(self, now_s: float) -> None:
        if self._faults.over:
            return
        there = [life.task for life in self.lives.values() if life.pid is not None]
        for fault in self._faults.due(now_s - self.started_s, self.progress.step, there):
            self._say(f"simulate: {fault.task} {fault.text}")
            self._note("fault", task=str(fault.task), signal=signal.Signals(fault.signal).name)
            self.lives[fault.task].signal(fault.signal)

    def _check_success(self, now_s: float) -> None:
        if self._ends.run_succeeded:
            limits = self._limits
            replica_s = min(limits.grace_s, LAST_LINES_S[not self.foreign])
            replicas = dict.fromkeys(TRAINING_ROLES, replica_s)
            leave_s = {**replicas, Role.EVALUATOR: EVALUATOR_GRACE_S}
            self._stop(RunStop(RunState.SUCCEEDED, 0, now_s, limits.grace_s, leave_s), None)

    def _check_patience(self, now_s: float) -> None:
        starting = self.state is RunState.STARTING
        if late := self._patience.late(now_s, starting, self._order):
            self._give_up(late, now_s)
        elif self._order is None and starting:
            if word := self._patience.word(now_s):
                self._say(word)
        elif self._order is None and self._changed:  # of idle tasks, asking again would cost most
            text = self._patience.stall(now_s)
            self._journal.record.stalled = self._patience.stalled
            if word := self._patience.awaited(now_s, replicas_alone=self._ends.leader_changes):
                self._say(word)
            if text:
                self._say(text)
                self._note("stalled", message=text)
                self._ask_for_stacks(life for life in self.lives.values() if life.state == TaskState.RUNNING)

    def _ask_for_stacks(self, lives: Iterable[TaskLife]) -> None:
        """Have tasks write their threads' stacks to their logs, but for those that the signal would kill."""
        self._console.leave_out_stacks()
        if not self.foreign:
            self._signal_all(lives, signal.SIGUSR2)

    def _nothing_to_evaluate(self) -> bool:
        """Return whether the evaluator has evaluated the last checkpoint and waits for another one.

        It hears of the end from ps:0, and in vain where that died at the same moment.
        """
        saved = self.progress.saved
        lives = [life for life in self.lives.values() if life.task.role is Role.EVALUATOR and not life.ended]
        idle = [life for life in lives if life.status and life.status.waiting_for == NEXT_CHECKPOINT]
        return saved is not None and lives == [
            life for life in idle if life.status and (life.status.step or 0) >= saved[0]
        ]

    def _stop_further(self, order: RunStop, now_s: float) -> None:
        idle = order.patient and self._nothing_to_evaluate()
        if idle:
            order = replace(order, leave_s={**order.leave_s, Role.EVALUATOR: IDLE_EVALUATOR_GRACE_S})
        self._warn_of(ordered_stop.reluctant(order, self._remaining(), now_s))
        for task, number in self._advance_stop(order, now_s, self._joined.remaining()):
            if task not in self.lives:
                self._joined.signal(task, number, now_s)
            elif order.patient and task.role is Role.EVALUATOR and self.lives[task].stop_s == now_s:
                late = f"it has not ended {EVALUATOR_GRACE_S:g} s after the leader"
                if not (idle or self.foreign):
                    self._say(f"{task} is being stopped: {late}; its last evaluation may be missing")

    def _warn_of(self, reluctant: list[TaskId]) -> None:
        slow = [self.lives[task] for task in reluctant if not self.lives[task].reluctant]
        for life in slow:
            life.reluctant = True
            where = "" if self.foreign else "; its stacks are in its log"
            self._say(f"{life.task} has not stopped yet{where}")
        if slow:
            self._ask_for_stacks(slow)

    def _start(self, life: TaskLife) -> None:
        super()._start(life)
        if not life.ended:
            self._console.follow(life.task, life.launch.log)

    def _stop(self, order: RunStop, word: str | None) -> None:
        self._journal.record.state = RunState.STOPPING
        self._note("stopping", because=order.state)
        # before any signal is sent: a worker that has joined looks whether the whole run is stopping
        self._journal.save()
        super()._stop(order, word)

    def _give_up(self, late: Late, now_s: float) -> None:
        """End the run for a reason of the launcher's own, which no later failure of a task replaces."""
        text, failure = late.text, launcher_failure(late.kind, late.text, late.code, 0.0)
        self._causes.append(failure)
        if late.tasks:
            self._task_places = TaskPlaces(self.lives.values(), late.tasks)
            self._ask_for_stacks(late.tasks)
            text += "" if self.foreign else "; the tasks' stacks are in their logs"
        self._stop(RunStop(RunState.FAILED, late.code, now_s, self._limits.grace_s), text)

    def _over(self) -> bool:
        return super()._over() and not self._joined.remaining()

    def _conclude(self) -> RunOutcome:
        assert self._order is not None
        if self._task_places is not None:
            self._causes[-1].standing = self._task_places.lines()
        self._announce_joined_workers()
        self._note_progress()
        outcome = outcome_of(self._order, self.lives.values(), self._causes)
        for text in self._faults.missed() if outcome.state is RunState.SUCCEEDED else ():
            self._say(f"simulate: {text}: the run ended before that was due")
        if not self.replaced:
            self._journal.end(outcome.state, outcome.exit_code, outcome.failure)
        self._record_tasks()
        return outcome

    def _record_tasks(self) -> None:
        self._journal.record.tasks = [life.to_record() for life in self.lives.values()]
        self._journal.save()
