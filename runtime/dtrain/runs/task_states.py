"""The state of a task by its own last report, where no launcher has seen its end."""

from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.runs.states import TaskState

STOPPED = (129, 130, 131, 143)
"""Exit codes of a program that was asked to stop."""
_BY_PHASE = {
    TaskPhase.STARTING: TaskState.STARTING,
    TaskPhase.RUNNING: TaskState.RUNNING,
    TaskPhase.LEAVING: TaskState.STOPPING,
    TaskPhase.FINISHED: TaskState.SUCCEEDED,
}


def why_lost(said: TaskStatus) -> str | None:
    """Return why a task that has ended was lost to the run; None: it has not ended, or ended well.

    A replica has left early, whatever its exit code, if it has begun a `fit` whose last step it has not seen.
    """
    if said.message is None and said.phase is TaskPhase.FINISHED and said.fits_ended < said.fits_begun:
        return f"left {where_in_training(said)}, with exit code {said.exit_code or 0}"
    return said.message


def state_of(said: TaskStatus) -> TaskState:
    if why_lost(said) is not None:
        return TaskState.STOPPED if said.exit_code in STOPPED else TaskState.FAILED
    return _BY_PHASE[said.phase]


def where_in_training(said: TaskStatus | None) -> str:
    """Return the place in training at which a replica left early: ``before the last step (400)``."""
    if said is None or not said.fits_begun:
        return "without having trained"
    if said.fits_ended < said.fits_begun:
        return "before the last step" + (f" ({said.max_steps})" if said.max_steps else "")
    return f"before call {said.fits_ended + 1} of fit, which others have begun"
