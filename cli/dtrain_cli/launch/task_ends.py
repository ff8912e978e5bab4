"""The consequence of the end of a task's process: success, failure, a stop, or another attempt."""

import contextlib
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import Role, TaskId
from dtrain.config import NO_RESTART, RestartSection, RunSpec
from dtrain.config.choices import On
from dtrain.errors import RunError, SpecError
from dtrain.messages.membership import TaskPhase
from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, read_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import FailureKind, RunState, TaskState
from dtrain.runs.task_states import where_in_training
from dtrain_cli.launch.policies import outcomes
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.policies.outcomes import Restart
from dtrain_cli.launch.tasks import TaskLife, describe, failure_of, keep_failure, own_record

TOLD_TO_STOP = 143


class Judgement(msgspec.Struct, frozen=True):
    """The consequence of the end of a process: the task's state, why it failed, when it is started again.

    `word` is the line for the user about an end that is neither a failure nor a restart.
    """

    state: TaskState
    failure: FailureRecord | None = None
    restart: Restart | None = None
    word: str | None = None


class TaskEnds:
    """The judge of every end of a task in one run, and of the run's success.

    `leader_changes`: another replica leads when the leader has died. `away`: tasks whose host was lost.
    """

    def __init__(
        self, spec: RunSpec, spec_file: Path, leader: TaskId, foreign: bool, lives: Mapping[TaskId, TaskLife]
    ) -> None:
        self.away: set[TaskId] = set()
        self.leader_changes = outcomes.leader_changes(spec, foreign)
        self._spec = spec
        self._spec_file = spec_file
        self._first = leader
        self._foreign = foreign
        self._lives = lives

    @property
    def leader(self) -> TaskId:
        """The leader; a task that has died stays the leader until another task says that it leads."""
        if not self.leader_changes:
            return self._first
        leading = [life for life in self._lives.values() if life.status is not None and life.status.leads]
        living = [life for life in leading if not life.ended]
        there = [life.task for life in living if life.has_process or life.task not in self.away]
        done = [life.task for life in leading if life.state == TaskState.SUCCEEDED]
        return next(iter([*there, *done, *(life.task for life in living)]), self._first)

    @property
    def run_succeeded(self) -> bool:
        leader = self.leader
        successors = self.leader_changes and not self.stands_and_falls_with(leader)
        return outcomes.has_succeeded(self._spec, leader, self._states, successors)

    def stands_and_falls_with(self, task: TaskId) -> bool:
        """Return whether the others end with a task: it is in a loop of the program's own.

        No other task leads such a loop on: rule *Calls* (docs/design/collectives.md#calls).
        """
        status = self._lives[task].status
        return self.leader_changes and task.trains and status is not None and status.in_loop

    def needed_in_a_loop(self, task: TaskId) -> bool:
        """Return whether a task is in a loop of the program's own, or others are: they need every replica."""
        others = (life.status for life in self._lives.values() if life.task.trains and not life.ended)
        others_in_loop = any(status is not None and status.in_loop for status in others)
        return (self.leader_changes and task.trains and others_in_loop) or self.stands_and_falls_with(task)

    def goes_on_without(self, lost: TaskId, why: FailureRecord) -> bool:
        """Return whether the run goes on although a task has failed for good.

        The spec is every replica's: what is wrong with it for one, each of the others would find in its turn.
        """
        of_the_spec = lost.trains and why.error_type == SpecError.__name__
        if (of_the_spec or self.needed_in_a_loop(lost)) and not self.run_succeeded:
            return False
        others = (life for life in self._lives.values() if life.task.trains and life.task != lost)
        if self._spec.on is not On.LOCAL and lost == self.leader and not any(life.is_up for life in others):
            return False  # tasks on other hosts cannot read who has failed for good: they would wait for it
        return outcomes.survives_without(self._in_force(), self.leader, lost, self._states, self._foreign)

    def waits_for(self, lost: Collection[TaskId]) -> bool:
        """Return whether the others train on until tasks that were lost with their host start again."""
        spec, leader = self._in_force(), self.leader
        away = (outcomes.can_be_away(spec, leader, task, self._foreign) for task in lost)
        return all(away) and not any(self.needed_in_a_loop(task) for task in lost)

    @property
    def _states(self) -> dict[TaskId, TaskState]:
        return {task: life.state for task, life in self._lives.items()}

    def _in_force(self) -> RunSpec:
        """Return the spec with the program's wishes, as its leader writes it; before that our own."""
        with contextlib.suppress(RunError, OSError):
            return read_record(self._spec_file, RunSpec) or self._spec
        return self._spec

    def judge(self, life: TaskLife, end: Exited, order: RunStop | None, now_s: float) -> Judgement:
        """Return what follows from an end; `order` is the order to stop, if there is one.

        A task that died when its program had ended well has succeeded. Another attempt would find nothing to
        do, and after a leader's farewell no server either.
        """
        status = life.status
        finished = status is not None and status.phase is TaskPhase.FINISHED and status.exit_code == 0
        if finished and outcomes.may_be_chance(end.status):
            ended = self.judge(life, msgspec.structs.replace(end, status=0), order, now_s)
            what = describe(end, end.killed_for_memory)
            return replace(ended, word=f"{life.task} was {what} when its program had ended: nothing is lost")
        if order is not None:
            return self._while_stopping(life, end, order, now_s)
        failure = self._failure(life, end)
        if failure is not None and self._was_told(life, end, failure):
            return Judgement(TaskState.STOPPED, failure)
        leads = life.task == self.leader
        restart = self._restart(life, end, failure, now_s)
        if self.stands_and_falls_with(life.task):
            restart = None
        if restart is not None and (failure is not None or not leads):
            return Judgement(TaskState.RESTARTING, failure, restart)
        return Judgement(TaskState.FAILED if failure else TaskState.SUCCEEDED, failure)

    def _while_stopping(self, life: TaskLife, end: Exited, order: RunStop, now_s: float) -> Judgement:
        """Judge by the time: a task that ended before the order to stop ended by itself, also on success."""
        if order.state is RunState.STOPPED and end.exit_code == order.exit_code:
            return Judgement(TaskState.STOPPED)  # the same order, which an engine gives to every process
        own = own_record(life.launch)
        by_itself = life.stop_s is None or (own is not None and own.monotonic_s < life.stop_s)
        if by_itself and (failure := self._failure(life, end)):
            if order.state is RunState.STOPPED and failure.kind is FailureKind.PEER_LOST:
                return Judgement(TaskState.STOPPED)  # it missed a task that was stopped before it
            if self._was_told(life, end, failure):
                return Judgement(TaskState.STOPPED, failure)
            restart = self._restart(life, end, failure, now_s)
            role = life.task.role
            if restart is not None and life.stop_s is None and order.may_start_again(role, restart.at_s):
                return Judgement(TaskState.RESTARTING, failure, restart)
            return Judgement(TaskState.FAILED, failure)
        return Judgement(TaskState.SUCCEEDED if end.status == 0 or order.patient else TaskState.STOPPED)

    def left_behind(self, life: TaskLife) -> FailureRecord | None:
        """Return why the others cannot do without a task that has ended; None: they can, or it has not.

        A worker may have ended well, but before a `fit` of the others; or a replica has failed, and others
        have begun a loop of the program's own since.
        """
        if life.lost is not None and self.needed_in_a_loop(life.task) and not self.run_succeeded:
            return life.lost
        if life.task.role is Role.WORKER and life.state == TaskState.SUCCEEDED and self._left_early(life):
            return _early_end(life)
        return None

    def rule(self, task: TaskId) -> RestartSection:
        if self._foreign:
            return self._spec.restart.get(task.role.value, NO_RESTART)
        return self._spec.restart_of(task.role)

    def _restart(
        self, life: TaskLife, end: Exited, failure: FailureRecord | None, now_s: float
    ) -> Restart | None:
        error_type = None if failure is None else failure.error_type
        stuck = life.stuck.get(life.launch.attempt)
        ran_s = (stuck.since_s if stuck else now_s) - life.started_s  # what is stuck is not healthy
        return outcomes.decide_restart(
            self.rule(life.task), end.status, life.restarts_used, ran_s, now_s, error_type
        )

    def _failure(self, life: TaskLife, end: Exited) -> FailureRecord | None:
        failure = None
        if end.status != 0:
            failure = failure_of(life.launch, end, life.stuck_text)
        elif life.task.trains and self._left_early(life):
            failure = _early_end(life)
        if failure is not None:
            failure.step = life.status.step if life.status else None
        return failure

    def _left_early(self, life: TaskLife) -> bool:
        """Return whether a replica that ended well had a step to make, in its own or another's `fit`."""
        ended = life.status.fits_ended if life.status else 0
        replicas = (each.status for each in self._lives.values() if each.task.trains)
        return ended < max((status.fits_begun for status in replicas if status), default=0)

    def _was_told(self, life: TaskLife, end: Exited, failure: FailureRecord) -> bool:
        """Return whether this task left in order after a SIGTERM from another process.

        A leader's run ends with it, where no other one leads then.
        """
        leaves = life.task.role in (Role.WORKER, Role.EVALUATOR) and life.task != self.leader
        leaves = leaves or (life.task.trains and self.leader_changes)
        return leaves and failure.kind is FailureKind.SIGNAL and end.status == TOLD_TO_STOP


def _early_end(life: TaskLife) -> FailureRecord:
    record = FailureRecord(
        str(life.task),
        f"left {where_in_training(life.status)}, with exit code 0",
        kind=FailureKind.EXIT,
        time=now_text(),
        monotonic_s=time.monotonic(),
        attempt=life.launch.attempt,
        exit_code=0,
        step=life.status.step if life.status else None,
    )
    return keep_failure(life.launch, record)
