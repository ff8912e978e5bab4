"""The success of a run, its outcome, and whether a task that ended is started again. Pure.

The leader (the chief, else worker 0) decides; with `success: all_workers` every worker too. A failure for
good ends the run, except of the evaluator, and of a worker while enough other replicas live. Where replicas
reduce among themselves the same holds for the leader: another one leads then, and decides.

A death by signal, or an exit code of 128 and more, may be chance; an exit code from 1 to 127 is the
program's own word and stays (Kubernetes' ExitCode rule), and so does 255, which ``sys.exit(-1)`` gives. The
backoff doubles with every restart, and both are forgotten after a healthy minute.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config import (
    InOneTask,
    MultiWorkerMirroredSection,
    PipelineSection,
    RestartSection,
    RunSpec,
    SynchronousSection,
)
from dtrain.config.choices import RestartPolicy, Success, TooFew
from dtrain.runs.files import FailureRecord
from dtrain.runs.states import ENDED, FailureKind, RunState, TaskState
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.tasks import TaskLife, earliest

RECENT_S = 60.0


class RunOutcome(msgspec.Struct, frozen=True):
    """The end of a run; `failure` is its earliest cause."""

    state: RunState
    exit_code: int
    failure: FailureRecord | None


def outcome_of(order: RunStop, lives: Collection[TaskLife], causes: Sequence[FailureRecord]) -> RunOutcome:
    """Return the outcome once nothing runs any more; `causes` are the failures that stopped the run."""
    if order.state != RunState.FAILED:
        return RunOutcome(order.state, order.exit_code, None)
    failed = [life.failure for life in lives if life.failure and life.state is TaskState.FAILED]
    training = [failure for failure in failed if not failure.task.startswith(Role.EVALUATOR)]
    failure = earliest([*causes, *training])
    code = (failure.exit_code if failure else None) or 1
    if failure and failure.kind is FailureKind.PEER_LOST:
        # Of a task that has been, or is being, started again.
        crashes = [life.failure for life in lives if life.failure]
        failure = earliest(crash for crash in crashes if crash.monotonic_s > failure.monotonic_s - RECENT_S)
    if failure:
        failure.likewise = [
            other.task for other in failed if other is not failure and other.message == failure.message
        ]
    return RunOutcome(RunState.FAILED, code, failure)


def leader_changes(spec: RunSpec, foreign: bool) -> bool:
    """Return whether another replica leads after the death of the leader: they reduce without servers."""
    return isinstance(spec.training, MultiWorkerMirroredSection) and not foreign


def has_succeeded(
    spec: RunSpec, leader: TaskId, states: Mapping[TaskId, TaskState], successors: bool = False
) -> bool:
    """Return whether every task on which success depends has succeeded.

    Where the leader has successors, and it was lost when no other replica had anything left to do, one of
    these that has come to a good end is enough.
    """
    workers = {task for task in states if task.role is Role.WORKER}
    if spec.success == Success.ALL_WORKERS and any(states[task] != TaskState.SUCCEEDED for task in workers):
        return False
    if states.get(leader) == TaskState.SUCCEEDED:
        return True
    if not successors:
        return False
    replicas = [state for task, state in states.items() if task.trains]
    return all(state in ENDED for state in replicas) and TaskState.SUCCEEDED in replicas


def can_be_away(spec: RunSpec, leader: TaskId, task: TaskId, foreign: bool) -> bool:
    """Return whether the others can train while a task is away, as far as its role says."""
    if foreign or task.role is Role.EVALUATOR:
        return not foreign
    if isinstance(spec.training, PipelineSection):
        return False
    return task.trains if leader_changes(spec, foreign) else task.role is Role.WORKER and task != leader


def survives_without(
    spec: RunSpec, leader: TaskId, lost: TaskId, states: Mapping[TaskId, TaskState], foreign: bool
) -> bool:
    """Return whether the run goes on although `lost`, which is in `states` already, has failed for good."""
    successors, training = leader_changes(spec, foreign), spec.training
    if lost.role is Role.EVALUATOR or has_succeeded(spec, leader, states, successors):
        return True  # what dies after the leader's success changes nothing
    if not can_be_away(spec, leader, lost, foreign):
        return False
    all_workers = spec.success == Success.ALL_WORKERS and lost.role is Role.WORKER
    if all_workers or isinstance(training, InOneTask):
        return False
    trains = {Role.WORKER, Role.CHIEF} if training.chief_trains else {Role.WORKER}
    live = [task for task, state in states.items() if task.role in trains and state not in ENDED]
    needed = 1
    if isinstance(training, SynchronousSection) and training.too_few != TooFew.SHRINK:
        needed = min(spec.replicas, training.replicas_needed(spec.replicas))
    return len(live) >= needed


HEALTHY_S = 60.0
SIGNALLED = 128
MINUS_ONE = 255
PERMANENT_ERRORS = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "SpecError",
    "ProgramError",
)
"""Failures that the next attempt would repeat, whatever the policy says."""


def may_be_chance(status: int) -> bool:
    """Return whether an end is a death by signal, or is reported as one; another attempt may succeed."""
    return status < 0 or SIGNALLED <= status < MINUS_ONE


class Restart(msgspec.Struct, frozen=True):
    """Start it again at `at_s`; `count` restarts will then have been used up."""

    at_s: float
    count: int


def decide_restart(
    rule: RestartSection, status: int, count: int, ran_s: float, now_s: float, error_type: str | None = None
) -> Restart | None:
    """Return the restart that follows the end of an attempt; None: the task has ended for good.

    `count` restarts have been used up so far, and the attempt ran for `ran_s`; `error_type` is the class of
    the exception that ended it.
    """
    if error_type in PERMANENT_ERRORS or rule.policy == RestartPolicy.NEVER:
        return None
    if rule.policy == RestartPolicy.ON_FAILURE and not may_be_chance(status):
        return None
    used = 0 if ran_s >= HEALTHY_S else count
    if used >= rule.max:
        return None
    return Restart(at_s=now_s + rule.backoff_s * 2**used, count=used + 1)
