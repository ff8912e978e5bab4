"""One task's life in a run, over all its attempts: what the supervisor knows of it."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain.runs.files import FailureRecord, KillRequest, RunFiles, TaskRecord, read_record
from dtrain.runs.states import ENDED, HAS_PROCESS, TaskState
from dtrain_cli.plan.task_launch import TaskLaunch
from dtrain_cli.targets.target import TaskHandle


@dataclass(frozen=True)
class Stuck:
    """A replica that is stuck.

    Attributes:
        place: where it was stuck, ``in its input at step 7``.
        reason: how that is known, for people.
        since_s: since when, by the monotonic clock.
    """

    place: str
    reason: str
    since_s: float


@dataclass
class TaskLife:
    """Mutable, and owned by the supervisor alone.

    Attributes:
        launch: the present attempt.
        host: the name of the host on which it runs.
        handle: the present attempt at the target; None: none was started.
        first_attempt: where this launch began to count; a resumed run directory holds earlier ones.
        state: as docs/reference/commands.md names it.
        started_s: when the present attempt was started (monotonic).
        status: what the present attempt last said of itself.
        stop_s: when it got the order to stop; None: it did not.
        reluctant: it got the order and has not left in time, so its stacks were asked for.
        restart_s: when it is to be started again; None: it is not.
        restarts_used: since it was last healthy; `restarts` counts all.
        failure: of the last attempt that failed.
        stuck: by attempt, where it was stuck, of those that were killed for it.
        lost: why it will not run again although it has not come to a good end; None: it has, or still runs.
    """

    launch: TaskLaunch
    first_attempt: int = 0
    host: str | None = None
    handle: TaskHandle | None = None
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    exit_code: int | None = None
    started_s: float = 0.0
    status: TaskStatus | None = None
    stop_s: float | None = None
    reluctant: bool = False
    restart_s: float | None = None
    restarts_used: int = 0
    failure: FailureRecord | None = None
    lost: FailureRecord | None = None
    stuck: dict[int, Stuck] = field(default_factory=dict)
    _paths: tuple[TaskLaunch, Path, Path] | None = None
    _seen: tuple[int, int, int] | None = None

    @property
    def task(self) -> TaskId:
        """Return the task's name."""
        return self.launch.task

    @property
    def restarts(self) -> int:
        """Return how often this launch has restarted the task."""
        return self.launch.attempt - self.first_attempt

    @property
    def has_process(self) -> bool:
        """Return whether an attempt is running or being started."""
        return self.state in HAS_PROCESS

    @property
    def ended(self) -> bool:
        """Return whether the task will never run again."""
        return self.state in ENDED

    @property
    def is_up(self) -> bool:
        """Return whether the task is up: a program reports it, a foreign command is once it is executed."""
        if self.state != TaskState.STARTING:
            return self.state != TaskState.PENDING
        if self.launch.program is None:
            return self.pid is not None
        return self.status is not None and self.status.phase is not TaskPhase.STARTING

    def read_status(self) -> None:
        """Read what the present attempt says of itself; an earlier attempt's word does not count."""
        if not self.has_process or self.launch.program is None:
            return
        path, _ = self._files_looked_at()
        try:
            facts = path.stat()
            stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
        except OSError:
            return
        if stamp == self._seen and self.status is not None:
            return
        with contextlib.suppress(RunError):
            status = read_record(path, TaskStatus)
            self._seen = stamp
            if status is not None and status.attempt == self.launch.attempt:
                self.status = status

    def kill_request(self) -> KillRequest | None:
        """Return the request to kill the present attempt, if there is one."""
        if self.launch.program is None or not os.path.lexists(path := self._files_looked_at()[1]):
            return None
        with contextlib.suppress(RunError):
            return read_record(path, KillRequest)
        return None

    def _files_looked_at(self) -> tuple[Path, Path]:
        """Return the files of the present attempt's status and kill request, made once."""
        if self._paths is None or self._paths[0] is not self.launch:
            files = RunFiles(self.launch.run_dir)
            self._paths = (self.launch, files.status(self.task), files.kill(self.task, self.launch.attempt))
        return self._paths[1:]

    @property
    def stuck_text(self) -> str | None:
        """Return why the present attempt was killed, ``was stuck 3 times, now in its input at step 7``."""
        if (stuck := self.stuck.get(self.launch.attempt)) is None:
            return None
        times = f" {len(self.stuck)} times, now" if len(self.stuck) > 1 else ""
        return f"was stuck{times} {stuck.place}, and was killed"

    def signal(self, number: int) -> None:
        """Send a signal to every process of the present attempt."""
        if self.handle is not None:
            self.handle.signal(number)

    def to_record(self) -> TaskRecord:
        """Return the task's part of run.json."""
        why = self.failure if self.state == TaskState.RESTARTING else self.lost
        return TaskRecord(
            task=str(self.task),
            state=TaskState(self.state),
            pid=self.pid,
            host=self.host,
            address=self.launch.address,
            attempt=self.launch.attempt,
            restarts=self.restarts,
            exit_code=self.exit_code,
            message=why.message if why else None,
        )
