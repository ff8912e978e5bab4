"""Messages of membership: heartbeats, a task's report on itself, the state of the run, and the end.

Rules *No silent wait* (docs/design/protocol.md#no-silent-wait) and *Orderly end*
(docs/design/protocol.md#orderly-end).
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from dtrain.cluster import Moved, Role
from dtrain.formats.bounded_reading import Moment
from dtrain.messages.message import Message, Refusal
from dtrain.state.fit_state import Lineage, Row

NEXT_CHECKPOINT = "the next checkpoint"
"""The wait of an idle evaluator: it waits for a file and not for a task."""


class TaskPhase(StrEnum):
    """The phase of a task by its own report: `STARTING` until it is up, `LEAVING` from the order to stop on,
    while others need it.
    """

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    FINISHED = "finished"


class TaskStatus(msgspec.Struct):
    """A task's report on its own training. Absent or null where it does not apply.

    Attributes:
        monotonic_s: the machine's monotonic clock at the time of writing: the heartbeat.
        waiting_share: the share of recent time in which it has waited for others, 0 to 1.
        evaluation: the newest evaluation: ``global_step`` and one number a metric.
        fits_ended: how many calls of `fit` have reached their last step, or the one with which the leader
            ended them.
        leads: whether the task leads, where that may change (replicas that reduce among themselves).
        unsaved: why the checkpoint after `saved_step` could not be written; None: there is none, or it was.
        cpu_percent: of one core, since the last report; None for a task on the machine of its launcher.
        silent_s: how long ago the control host has heard this, by the host's clock.
        lost: whether its lease at the control host has run out since.
        in_loop: whether the task is in a loop of the program's own, and in no call of `fit` since.
        step_s: how long such a step takes, without the rests of a task that is slow on purpose.
        local_steps: where a step is a round of local steps, how many of these the run has made.
        stage: the layer with which the task's stage of a pipeline begins.
    """

    task: str
    pid: int
    host: str
    attempt: int = 0
    phase: TaskPhase = TaskPhase.STARTING
    monotonic_s: Moment = 0.0
    progress_monotonic_s: Moment = 0.0
    step: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    examples_per_s: float | None = None
    staleness_mean: float | None = None
    staleness_counts: dict[int, int] = msgspec.field(default_factory=dict)
    stale_gradients: int | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    rolled_back_steps: int = 0
    waiting_for: str | None = None
    waiting_share: float | None = None
    input_share: float | None = None
    reading_monotonic_s: Moment | None = None
    evaluation: dict[str, int | float] | None = None
    evaluations: list[dict[str, int | float]] = msgspec.field(default_factory=list)
    fits_begun: int = 0
    fits_ended: int = 0
    saved_step: int | None = None
    unsaved: str | None = None
    exit_code: int | None = None
    message: str | None = None
    hosts_control: bool = False
    certificate_ends: str | None = None
    waiting_monotonic_s: Moment | None = None
    active_monotonic_s: Moment = 0.0
    busy_with: str | None = None
    leads: bool = False
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    silent_s: float = 0.0
    lost: bool = False
    notices: int = 0
    in_loop: bool = False
    computing_s: float | None = None
    step_s: float | None = None
    local_steps: int | None = None
    stage: str | None = None


def by_clock(said: TaskStatus, now_s: float) -> TaskStatus:
    """Return a status that was heard at the control host with its times by another machine's clock, of which
    it is `now_s`.
    """
    heard_s = now_s - said.silent_s
    progress_s = said.progress_monotonic_s and heard_s - (said.monotonic_s - said.progress_monotonic_s)
    reading_s = said.reading_monotonic_s and heard_s - (said.monotonic_s - said.reading_monotonic_s)
    return replace(said, monotonic_s=heard_s, progress_monotonic_s=progress_s, reading_monotonic_s=reading_s)


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


class Heartbeat(Message, frozen=True, gc=False, kw_only=True):
    """Every task to ps:0 (the leader to every server): it is alive, and its status.

    Attributes:
        process: which process speaks: the attempt and when it began (seconds); a later one is larger.
        incarnation: as the server said last; before that the millisecond at which the process began.
        moved_to: the address at which the sender serves, if that is not the one in the cluster.
    """

    process: tuple[int, float]
    incarnation: int
    status: TaskStatus | None = None
    leaving: bool = False
    moved_to: str | None = None
    book: int = 0


class HeartbeatReply(Message, frozen=True, gc=False, kw_only=True):
    """The state of the run.

    Attributes:
        heard_of: to the leader: every task that has been heard of, dead or alive.
        moved: the address book's entries that differ from the cluster, if the sender's has another digest.
    """

    incarnation: int
    generation: int
    version: int
    ended: bool
    waiting_for: str | None = None
    failed: Refusal | None = None
    directory: str | None = None
    statuses: tuple[TaskStatus, ...] = ()
    term: int = 0
    lineage: Lineage = Lineage()
    max_steps: int = 0
    heard_of: tuple[str, ...] = ()
    moved: Moved = msgspec.field(default_factory=dict)


class Record(Message, frozen=True, gc=False, kw_only=True):
    """Leader to ps:0: the numbers of epochs that have ended. The server answers with `Recorded`.

    Attributes:
        rows: by epoch; repeating one changes nothing.
        number: (incarnation of the leader, a count): one that comes after a later one changes nothing.
    """

    generation: int
    term: int = 0
    epoch: int | None = None
    rows: dict[int, Row] = msgspec.field(default_factory=dict)
    number: tuple[int, int] = (0, 0)


class Recorded(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done, if it is in the leader's term.

    Attributes:
        rows: if the leader only asked, of all epochs of this generation that have ended.
    """

    term: int
    rows: dict[int, Row]


class Conclude(Message, frozen=True, gc=False, kw_only=True):
    """Leader to ps:0: the last step of this generation is saved; its replicas may go. The server answers with
    the same. `rows` are the numbers of every epoch, which a ps:0 that was started again lacks.
    """

    generation: int
    rows: dict[int, Row] = msgspec.field(default_factory=dict)


class Farewell(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: no task will train any more; end when the last connection is closed. The server
    answers with the same. `rows` are the numbers of every epoch, by call of `fit`, which a server that was
    started again lacks.
    """

    rows: dict[int, dict[int, Row]] = msgspec.field(default_factory=dict)
