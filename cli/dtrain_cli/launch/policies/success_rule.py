"""The success of a run, and the failures that it survives. Pure.

The leader (the chief, else worker 0) decides; with `success: all_workers` every worker too. A failure for
good ends the run, except of the evaluator, and of a worker while enough other replicas live. Where replicas
reduce among themselves the same holds for the leader: another one leads then, and decides.
"""

from collections.abc import Mapping

from dtrain.cluster import Role, TaskId
from dtrain.config import InOneTask, MultiWorkerMirroredSection, RunSpec, SynchronousSection
from dtrain.config.choices import Success, TooFew
from dtrain.runs.states import ENDED, TaskState


def leader_changes(spec: RunSpec, foreign: bool) -> bool:
    """Return whether another replica leads when the one that leads has died: they reduce among themselves."""
    return isinstance(spec.training, MultiWorkerMirroredSection) and not foreign


def has_succeeded(
    spec: RunSpec, leader: TaskId, states: Mapping[TaskId, TaskState], heirs: bool = False
) -> bool:
    """Return whether every task on which success depends has succeeded.

    Where the leader has heirs, and it was lost when no other replica had anything left to do, one of these
    that has come to a good end is enough.
    """
    workers = {task for task in states if task.role is Role.WORKER}
    if spec.success == Success.ALL_WORKERS and any(states[task] != TaskState.SUCCEEDED for task in workers):
        return False
    if states.get(leader) == TaskState.SUCCEEDED:
        return True
    if not heirs:
        return False
    replicas = [state for task, state in states.items() if task.trains]
    return all(state in ENDED for state in replicas) and TaskState.SUCCEEDED in replicas


def survives_without(
    spec: RunSpec, leader: TaskId, lost: TaskId, states: Mapping[TaskId, TaskState], foreign: bool
) -> bool:
    """Return whether the run goes on although `lost` has failed for good; `states` says so already."""
    if lost.role is Role.EVALUATOR or has_succeeded(spec, leader, states, leader_changes(spec, foreign)):
        return True  # what dies after the leader's success changes nothing
    if leader_changes(spec, foreign):
        may_go = lost.trains
    else:
        may_go = lost.role is Role.WORKER and lost != leader
    if foreign or not may_go:
        return False
    training = spec.training
    all_workers = spec.success == Success.ALL_WORKERS and lost.role is Role.WORKER
    if all_workers or isinstance(training, InOneTask):
        return False
    live = [task for task, state in states.items() if _is_replica(spec, task) and state not in ENDED]
    needed = 1
    if isinstance(training, SynchronousSection) and training.too_few != TooFew.SHRINK:
        needed = min(spec.replicas, training.replicas_needed(spec.replicas))
    return len(live) >= needed


def _is_replica(spec: RunSpec, task: TaskId) -> bool:
    return task.role is Role.WORKER or (task.role is Role.CHIEF and spec.training.chief_trains)
