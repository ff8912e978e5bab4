"""A task's report on itself: it travels with its heartbeats, and stands in its `status.json`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from dtrain.cluster import Role


class TaskPhase(StrEnum):
    """The phase of a task by its own report: `STARTING` until it is up."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class TaskStatus:
    """A task's report on its own training. Absent or null where it does not apply.

    Attributes:
        monotonic_s: the machine's monotonic clock at the time of writing: the heartbeat.
        progress_monotonic_s: the same clock when the step last rose.
        waiting_share: the share of recent time in which it has waited for others, 0 to 1.
        evaluation: the newest evaluation: ``global_step`` and one number a metric.
        evaluations: the evaluator's newest ones, in this form.
        fits_begun: how many calls of `fit` the task has come to.
        fits_ended: how many of these have reached their last step, or the one with which the leader ended
            them.
        saved_step: the step of the last checkpoint that this attempt has written.
        hosts_control: whether the task hosts the control plane of the run.
        unsaved: why the one after it could not be written; None: there is none, or it was.
        exit_code: of the task's program; None: it has not ended.
        message: why it did not end well.
        certificate_ends: the end of its certificate, as ISO 8601 writes it, where it has one.
    """

    task: str
    pid: int
    host: str
    attempt: int = 0
    phase: TaskPhase = TaskPhase.STARTING
    monotonic_s: float = 0.0
    progress_monotonic_s: float = 0.0
    step: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    examples_per_s: float | None = None
    staleness_mean: float | None = None
    staleness_counts: dict[int, int] = field(default_factory=dict)
    stale_gradients: int | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    rolled_back_steps: int = 0
    waiting_for: str | None = None
    waiting_share: float | None = None
    evaluation: dict[str, int | float] | None = None
    evaluations: list[dict[str, int | float]] = field(default_factory=list)
    fits_begun: int = 0
    fits_ended: int = 0
    saved_step: int | None = None
    unsaved: str | None = None
    exit_code: int | None = None
    message: str | None = None
    hosts_control: bool = False
    certificate_ends: str | None = None


def global_step(statuses: Iterable[TaskStatus]) -> int | None:
    """Return the global step of a run: the control host's count, which it also tells the replicas.

    Other servers' counts are their own: rule *One batch a step* (docs/design/protocol.md#one-batch-a-step).
    """
    heard = (
        status.step
        for status in statuses
        if status.hosts_control or not status.task.startswith(f"{Role.PS}:")
    )
    return max((step for step in heard if step is not None), default=None)
