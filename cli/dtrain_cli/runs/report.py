"""One run as `dtrain status --json` prints it: the launcher's record and each task's own status, merged.

`build_report` is pure; `read_report` gathers what it needs. Fields are only ever added; what does not apply
is None.
"""

import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtrain.cluster import Role, TaskId
from dtrain.errors import RunError, RunNotFoundError
from dtrain.messages.status import TaskStatus, global_step
from dtrain.process.living import lives, started_s
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, read_record
from dtrain.runs.states import LIVE_RUN_STATES, LIVE_TASK_STATES, RunState, TaskState
from dtrain_cli.runs.index import own_record
from dtrain_cli.runs.joined_tasks import with_joined

EXIT_CODES = {RunState.FAILED: 1, RunState.STALE: 1, RunState.STOPPED: 4}
"""Exit codes of `dtrain status` by state; 0 for every other."""


@dataclass(frozen=True)
class ProcessUsage:
    """The usage of a process: per cent of one core, and bytes of its own memory (PSS)."""

    cpu_percent: float | None
    memory_bytes: int | None


@dataclass
class ProcessMeter:
    """A meter of processes; the processor's share is that since the last measurement, or since the start."""

    _last: dict[int, tuple[float, float]] = field(default_factory=dict)

    def measure(self, pid: int) -> ProcessUsage | None:
        """Return the usage of one process; None if it has ended or belongs to another user."""
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                used_s = times.user + times.system
                now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                used_before_s, since_s = self._last.get(pid, (0.0, started_s(pid) or now_s))
                memory = process.memory_full_info()
        except (psutil.Error, OSError):
            return None
        self._last[pid] = (used_s, now_s)
        elapsed_s = now_s - since_s
        percent = round(100 * max(0.0, used_s - used_before_s) / elapsed_s, 1) if elapsed_s > 0 else None
        return ProcessUsage(percent, getattr(memory, "pss", memory.rss))


def read_report(directory: Path, meter: ProcessMeter | None = None) -> dict[str, Any]:
    """Return everything that is known of the run in a directory; `damaged` names the records that are.

    Args:
        directory: the run's directory.
        meter: keeps measurements between calls, so that the processor's share is the present one.

    Raises:
        RunNotFoundError: there is no run in it.
        RunError: its record is damaged.
    """
    files = RunFiles(directory)
    record = own_record(directory)
    if record is None:
        raise RunNotFoundError(f"there is no run in {directory}")
    alive = record.state in LIVE_RUN_STATES and is_alive(files, record)
    if record.state in LIVE_RUN_STATES and not alive:
        record = own_record(directory) or record  # it may have ended between the two looks
    meter = meter or ProcessMeter()
    record.tasks = with_joined(files, record.tasks, None if alive else record.state)
    statuses: dict[str, TaskStatus | None] = {}
    damaged = []
    for task in record.tasks:
        try:
            statuses[task.task] = read_record(files.status(TaskId.parse(task.task)), TaskStatus)
        except (RunError, OSError) as error:
            damaged.append(str(error))
    pids = [task.pid for task in record.tasks if alive and task.pid and task.state in LIVE_TASK_STATES]
    usage = {pid: used for pid in pids if (used := meter.measure(pid)) is not None}
    report = build_report(files, record, statuses, usage, alive, time.monotonic())
    return {**report, "damaged": damaged}


def is_alive(files: RunFiles, record: RunRecord) -> bool:
    """Return whether the process that writes the record (the launcher, or a chief started by hand) still
    lives.

    The lock is the truth: the kernel drops it with its holder. It is asked last because asking means taking
        it for a moment.
    """
    return launcher_lives(record) or is_locked(files.lock)


def launcher_lives(record: RunRecord) -> bool:
    """Return whether the process of that pid and start time exists."""
    return bool(
        record.launcher_pid
        and record.launcher_started
        and lives(record.launcher_pid, record.launcher_started)
    )


def is_locked(lock: Path) -> bool:
    """Return whether a process holds a lock."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def build_report(
    files: RunFiles,
    record: RunRecord,
    statuses: Mapping[str, TaskStatus | None],
    usage: Mapping[int, ProcessUsage],
    alive: bool,
    now_s: float,
) -> dict[str, Any]:
    """Merge the launcher's view with the tasks' own.

    Args:
        files: the run's files.
        record: the launcher's record.
        statuses: by the tasks' names.
        usage: by pid, of the processes that live.
        alive: whether the launcher lives.
        now_s: the machine's monotonic clock.
    """
    stale = record.state in LIVE_RUN_STATES and not alive
    known = [status for status in statuses.values() if status is not None]
    failure = record.failure
    tasks = sorted(record.tasks, key=lambda task: TaskId.parse(task.task))
    return {
        "run": record.run,
        "name": record.name,
        "state": RunState.STALE if stale else record.state,
        "started": record.started,
        "ended": record.ended,
        "exit_code": record.exit_code,
        "global_step": global_step(known),
        "max_steps": _highest(status.max_steps for status in known),
        "rolled_back_steps": _highest(status.rolled_back_steps for status in known) or 0,
        "evaluation": _evaluation(record, known),
        "failure": failure
        and {"task": failure.task, "message": failure.message, "traceback": failure.traceback},
        "stalled": None if stale else record.stalled,
        "unsaved": next((status.unsaved for status in known if status.unsaved), None),
        "run_dir": str(files.directory),
        "tasks": [_task_report(files, task, statuses.get(task.task), usage, stale, now_s) for task in tasks],
    }


def _highest(values: Any) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _evaluation(record: RunRecord, statuses: list[TaskStatus]) -> dict[str, float] | None:
    """Return the newest evaluation, of leader or evaluator; None once the evaluator has failed for good."""
    if any(
        task.state == TaskState.FAILED and TaskId.parse(task.task).role is Role.EVALUATOR
        for task in record.tasks
    ):
        return None
    found = [status.evaluation for status in statuses if status.evaluation is not None]
    return max(found, key=lambda evaluation: evaluation.get("global_step", 0), default=None)


def _task_report(
    files: RunFiles,
    record: TaskRecord,
    status: TaskStatus | None,
    usage: Mapping[int, ProcessUsage],
    stale: bool,
    now_s: float,
) -> dict[str, Any]:
    """Return the report of one task. An earlier attempt's numbers count, but are no sign of life."""
    live = record.state in LIVE_TASK_STATES and not stale
    said = status or TaskStatus(record.task, 0, "")
    speaks = live and status is not None and status.attempt == record.attempt
    used = usage.get(record.pid or 0, ProcessUsage(None, None))
    return {
        "task": record.task,
        "state": TaskState.STOPPED if stale and record.state in LIVE_TASK_STATES else record.state,
        "pid": record.pid,
        "host": record.host or said.host or None,
        "address": record.address,
        "step": said.step,
        "loss": said.loss,
        "examples_per_s": said.examples_per_s,
        "staleness_mean": said.staleness_mean,
        "stale_gradients": said.stale_gradients,
        "bytes_sent": said.bytes_sent,
        "bytes_received": said.bytes_received,
        "cpu_percent": used.cpu_percent,
        "memory_bytes": used.memory_bytes,
        "restarts": record.restarts,
        "heartbeat_age_s": _age(now_s, said.monotonic_s) if speaks else None,
        "waiting_for": said.waiting_for if speaks else None,
        "waiting_share": said.waiting_share if speaks else None,
        "stalled_s": _age(now_s, said.progress_monotonic_s) if speaks and said.step is not None else None,
        "exit_code": record.exit_code,
        "message": record.message,
        "certificate_ends": said.certificate_ends if speaks else None,
        "log": str(files.log(TaskId.parse(record.task), record.attempt)),
    }


def _age(now_s: float, then_s: float) -> float | None:
    return round(max(0.0, now_s - then_s), 2) if then_s else None
