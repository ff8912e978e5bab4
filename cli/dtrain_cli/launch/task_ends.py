"""The consequence of the end of a task's process: success, failure, a stop, or another attempt."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config import NO_RESTART, RestartSection, RunSpec
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, RunFiles
from dtrain.runs.journal import now_text
from dtrain.runs.states import FailureKind, RunState, TaskState
from dtrain.runs.task_states import where_in_training
from dtrain_cli.launch.policies import restart_policy
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.policies.restart_policy import Restart
from dtrain_cli.launch.success import Success
from dtrain_cli.launch.tasks.root_cause import describe, failure_of, last_lines, own_record
from dtrain_cli.launch.tasks.task_life import TaskLife

TOLD_TO_STOP = 143


@dataclass(frozen=True)
class Judgement:
    """The consequence of the end of a process.

    Attributes:
        state: the task's from now on.
        failure: why it ended, if it did not end well.
        restart: when it is started again; None: it is not.
        word: what is to be said about an end that is none of these.
    """

    state: TaskState
    failure: FailureRecord | None = None
    restart: Restart | None = None
    word: str | None = None


class TaskEnds:
    """The judge of every end of a task in one run."""

    def __init__(
        self, spec: RunSpec, success: Success, foreign: bool, lives: Mapping[TaskId, TaskLife]
    ) -> None:
        self._spec = spec
        self._success = success
        self._foreign = foreign
        self._lives = lives

    def judge(self, life: TaskLife, end: Exited, order: RunStop | None, now_s: float) -> Judgement:
        """Return what follows from an end; `order` is by which the run is being stopped, if it is.

        A task that died when its program had ended well has succeeded. Another attempt would find nothing to
        do, and after a leader's farewell no server either.
        """
        if has_finished(life.status) and restart_policy.may_be_chance(end.status):
            ended = self.judge(life, msgspec.structs.replace(end, status=0), order, now_s)
            what = describe(end, end.killed_for_memory)
            return replace(ended, word=f"{life.task} was {what} when its program had ended: nothing is lost")
        if order is not None:
            return self._while_stopping(life, end, order, now_s)
        failure = self._failure(life, end)
        if failure is not None and self._was_told(life, end, failure):
            return Judgement(TaskState.STOPPED, failure)
        leads = life.task == self._success.leader
        restart = self._restart(life, end, failure, now_s)
        if self._success.stands_and_falls_with(life.task):
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
            if (
                restart is not None
                and life.stop_s is None
                and order.may_start_again(life.task.role, restart.at_s)
            ):
                return Judgement(TaskState.RESTARTING, failure, restart)
            return Judgement(TaskState.FAILED, failure)
        return Judgement(TaskState.SUCCEEDED if end.status == 0 or order.patient else TaskState.STOPPED)

    def left_behind(self, life: TaskLife) -> FailureRecord | None:
        """Return why the others cannot do without a task that has ended; None: they can, or it has not.

        A worker may have ended well, but before a `fit` of the others; or a replica has failed, and others
        have begun a loop of the program's own since.
        """
        if life.lost is not None and self._success.needed_in_a_loop(life.task) and not self._success.achieved:
            return life.lost
        if life.task.role is Role.WORKER and life.state == TaskState.SUCCEEDED and self._left_early(life):
            return self._early_end(life)
        return None

    def rule(self, task: TaskId) -> RestartSection:
        """Return the restart rule of a task."""
        if self._foreign:
            return self._spec.restart.get(task.role.value, NO_RESTART)
        return self._spec.restart_of(task.role)

    def _restart(
        self, life: TaskLife, end: Exited, failure: FailureRecord | None, now_s: float
    ) -> Restart | None:
        error_type = None if failure is None else failure.error_type
        stuck = life.stuck.get(life.launch.attempt)
        ran_s = (stuck.since_s if stuck else now_s) - life.started_s  # what is stuck is not healthy
        return restart_policy.decide(
            self.rule(life.task), end.status, life.restarts_used, ran_s, now_s, error_type
        )

    def _failure(self, life: TaskLife, end: Exited) -> FailureRecord | None:
        failure = None
        if end.status != 0:
            failure = failure_of(life.launch, end, life.stuck_text)
        elif life.task.trains and self._left_early(life):
            failure = self._early_end(life)
        if failure is not None:
            failure.step = life.status.step if life.status else None
        return failure

    def _left_early(self, life: TaskLife) -> bool:
        return left_early(
            life.status,
            (other.status for other in self._lives.values() if other.task.trains and other.status),
        )

    def _early_end(self, life: TaskLife) -> FailureRecord:
        """Keep the record of a replica that ended with exit code 0 although there were steps to make."""
        launch = life.launch
        status = life.status
        record = FailureRecord(
            str(launch.task),
            f"left {where_in_training(status)}, with exit code 0",
            kind=FailureKind.EXIT,
            time=now_text(),
            monotonic_s=time.monotonic(),
            attempt=launch.attempt,
            exit_code=0,
            log=str(launch.log),
            last_lines=last_lines(launch.log),
            step=status.step if status else None,
        )
        with contextlib.suppress(OSError):
            files = RunFiles(launch.run_dir)
            files.write_last_words(files.failure(launch.task, launch.attempt), record)
        return record

    def _was_told(self, life: TaskLife, end: Exited, failure: FailureRecord) -> bool:
        """Return whether this task left in order after a SIGTERM from another process; a leader's run ends
        with it, where no other one leads then.
        """
        leaves = life.task.role in (Role.WORKER, Role.EVALUATOR) and life.task != self._success.leader
        leaves = leaves or (life.task.trains and self._success.leader_changes)
        return leaves and failure.kind is FailureKind.SIGNAL and end.status == TOLD_TO_STOP


def has_finished(said: TaskStatus | None) -> bool:
    """Return whether a task has said that its program ended with exit code 0."""
    return said is not None and said.phase is TaskPhase.FINISHED and said.exit_code == 0


def left_early(said: TaskStatus | None, others: Iterable[TaskStatus]) -> bool:
    """Return whether a replica that ended with code 0 had a step to make, in its own or another's `fit`."""
    ended = said.fits_ended if said else 0
    return ended < max((status.fits_begun for status in (said, *others) if status), default=0)
