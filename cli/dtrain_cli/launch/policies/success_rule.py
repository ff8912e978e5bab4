"""The success of a run, and the failures that it survives. Pure.

The leader (the chief, else worker 0) decides; with `success: all_workers` every worker too. A failure for
good ends the run, except of the evaluator, and of a replica on parameter servers while enough others live.
"""

from collections.abc import Mapping

from dtrain.cluster import Role, TaskId
from dtrain.config import RunSpec, SingleSection, SyncSection
from dtrain.config.choices import Success, TooFew
from dtrain.runs.states import ENDED, TaskState


def has_succeeded(spec: RunSpec, leader: TaskId, states: Mapping[TaskId, TaskState]) -> bool:
    """Return whether every task on which success depends has succeeded."""
    needed = {leader}
    if spec.success == Success.ALL_WORKERS:
        needed |= {task for task in states if task.role is Role.WORKER}
    return all(states.get(task) == TaskState.SUCCEEDED for task in needed)


def survives_without(
    spec: RunSpec, leader: TaskId, lost: TaskId, states: Mapping[TaskId, TaskState], foreign: bool
) -> bool:
    """Return whether the run goes on although `lost` has failed for good; `states` says so already."""
    if lost.role is Role.EVALUATOR or has_succeeded(spec, leader, states):
        return True  # what dies after the leader's success changes nothing
    if lost.role is not Role.WORKER or foreign or lost == leader:
        return False
    training = spec.training
    if spec.success == Success.ALL_WORKERS or isinstance(training, SingleSection):
        return False
    live = [task for task, state in states.items() if _is_replica(spec, task) and state not in ENDED]
    needed = 1
    if isinstance(training, SyncSection) and training.too_few != TooFew.SHRINK:
        needed = min(spec.replicas, training.replicas_needed(spec.replicas))
    return len(live) >= needed


def _is_replica(spec: RunSpec, task: TaskId) -> bool:
    return task.role is Role.WORKER or (task.role is Role.CHIEF and spec.training.chief_trains)
