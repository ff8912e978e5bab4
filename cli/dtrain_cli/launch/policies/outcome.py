"""The outcome of a run: its state, its exit code and the earliest cause. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dtrain.cluster import Role
from dtrain.runs.files import FailureRecord
from dtrain.runs.states import FailureKind, RunState, TaskState
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.tasks.root_cause import earliest
from dtrain_cli.launch.tasks.task_life import TaskLife

RECENT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """The end of a run; `failure` is its earliest cause."""

    state: RunState
    exit_code: int
    failure: FailureRecord | None


def outcome_of(order: RunStop, lives: Collection[TaskLife], causes: Sequence[FailureRecord]) -> Outcome:
    """Return the outcome to report once nothing runs any more.

    Args:
        order: by which the run was stopped.
        lives: of all tasks.
        causes: the failures for which it was stopped.
    """
    if order.state != RunState.FAILED:
        return Outcome(order.state, order.exit_code, None)
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
    return Outcome(RunState.FAILED, code, failure)
