"""One run as `dtrain status --json` prints it: the launcher's record and each task's own status, merged.

`build_report` is pure; `read_report` gathers what it needs. Fields are only ever added; what does not apply
is None. A worker that has joined and was started here is owned by its command (`dtrain_cli.launch.join`),
which keeps its record.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.errors import RunError, RunNotFoundError
from dtrain.formats.bounded_reading import Moment, read_regular
from dtrain.messages.membership import TaskStatus, global_step
from dtrain.process.life_line import lives, started_s
from dtrain.process.plain_text import plain
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, read_record, read_sound
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.ledger import SHEET_BYTES, Attempt, Sheet, ledger_of
from dtrain.runs.states import LIVE_RUN_STATES, LIVE_TASK_STATES, RunState, TaskState
from dtrain_cli.runs.index import NAMED_MAX, other_host, own_record, shown_names, where_of

EXIT_CODES = {RunState.FAILED: 1, RunState.STALE: 1, RunState.STOPPED: 4}
"""Exit codes of `dtrain status` by state; 0 for every other."""
_UNHEARD = "has not reported since the leader of the run died; it ends by itself unless one comes back"
"""A task that was started by hand: no launcher has ended it, and it may live on for `wait.leader_s`."""


class ProcessUsage(msgspec.Struct, frozen=True):
    """The usage of a process: per cent of one core, and bytes of its own memory (PSS)."""

    cpu_percent: float | None
    memory_bytes: int | None


class ProcessMeter(msgspec.Struct):
    """A meter of processes; the processor's share is that since the last measurement, or since the start."""

    _last: dict[int, tuple[float, float]] = msgspec.field(default_factory=dict)

    def measure(self, pid: int) -> ProcessUsage | None:
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


def read_report(
    directory: Path, meter: ProcessMeter | None = None, *, goodput: bool = True
) -> dict[str, Any]:
    """Return everything that is known of the run in a directory; `damaged` names the records that are.

    A `meter` that is kept between calls makes the processor's share the present one. Without `goodput` the
    journal and the timesheets are not read, and that field is None.
    """
    files = RunFiles(directory)
    record = own_record(directory)
    if record is None:
        raise RunNotFoundError(f"there is no run in {directory}")
    engines = record.launcher_pid is None and where_of(files).job is not None  # it needs no launcher
    alive = record.state in LIVE_RUN_STATES and (engines or is_alive(files, record))
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
    here = (None, socket.gethostname())  # a pid means another process on another machine
    usage = {
        task.task: used
        for task in record.tasks
        if alive
        and task.pid
        and task.state in LIVE_TASK_STATES
        and task.host in here
        and (used := meter.measure(task.pid)) is not None
    }
    now_s = time.monotonic() if other_host(record) is None else _clock_there(files, statuses)
    report = build_report(files, record, statuses, usage, alive, now_s)
    ledger = read_goodput(files, record, now_s, alive=alive) if goodput else None
    return {**report, "goodput": ledger, "damaged": damaged}


_JOURNAL_BYTES_MAX = 256 << 20
_STOPPED = (0, 143, -15)
"""How a process ends that has done its work, or was told to stop."""


class _Line(msgspec.Struct):
    event: str
    time: str
    monotonic_s: Moment
    task: str | None = None
    attempt: int = 0
    status: int = 0


def read_goodput(files: RunFiles, record: RunRecord, now_s: float, *, alive: bool) -> dict[str, Any] | None:
    """Return the ledger of the newest launch of a run (`dtrain.runs.ledger`); None: nothing trained in it.

    Args:
        now_s: the launcher's monotonic clock.
        alive: whether the run goes on.
    """
    lines = {(each.event, each.task, each.attempt): each for each in _lines(files, record.started or "")}
    end_s = now_s if alive else max((line.monotonic_s for line in lines.values()), default=now_s)
    left = {task.task for task in record.tasks if task.state in (TaskState.SUCCEEDED, TaskState.STOPPED)}
    tasks = {}
    for task in map(str, files.tasks()):
        attempts = []
        started = [attempt for event, of, attempt in lines if (event, of) == ("started", task)]
        for number in started or list(files.attempts(TaskId.parse(task)))[-1:]:  # a worker has come by itself
            sheets = _sheets(files, task, number)
            begun, end = lines.get(("started", task, number)), lines.get(("exited", task, number))
            begun_s = begun.monotonic_s if begun else min((sheet.begun_s for sheet in sheets), default=now_s)
            ended_s = end.monotonic_s if end else None
            if end is None and not (begun and alive):  # its end is not in the journal
                ended_s = max((sheet.since_s for sheet in sheets), default=begun_s)
            laid = [sheet.within(begun_s, ended_s or now_s) for sheet in sheets]
            attempts.append(Attempt(begun_s, ended_s, end is not None and end.status not in _STOPPED, laid))
        if started and task not in left:  # it is down now, if it does not live
            attempts.append(Attempt(end_s, end_s, False, ()))
        tasks[task] = attempts
    final = record.state not in LIVE_RUN_STATES
    saved_step = None
    if final and record.state is not RunState.SUCCEEDED:
        saved_step = record.saved.step if record.saved is not None else 0
    return ledger_of(tasks, end_s, final=final, saved_step=saved_step)


def _lines(files: RunFiles, since: str) -> Iterator[_Line]:
    with contextlib.suppress(OSError):
        for text in read_regular(files.journal, _JOURNAL_BYTES_MAX, follow=False).splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                line = msgspec.json.decode(text, type=_Line)
                if line.time >= since:
                    yield line


def _sheets(files: RunFiles, task: str, attempt: int) -> list[Sheet]:
    """Return the timesheets of an attempt that can be read."""
    pattern = files.seconds(TaskId.parse(task), attempt, "*")
    sheets = []
    for path in sorted(pattern.parent.glob(pattern.name)):
        with contextlib.suppress(OSError):
            sheets.append(Sheet.read(read_regular(path, SHEET_BYTES, follow=False)))
    return [sheet for sheet in sheets if sheet is not None]


def _clock_there(files: RunFiles, statuses: Mapping[str, TaskStatus | None]) -> float:
    """Return the monotonic clock of the other machine: that of its newest status and the age of the file.

    What two machines take for the time of day differs by seconds, their monotonic clocks by months.
    """
    moments = [0.0]
    for task, status in statuses.items():
        with contextlib.suppress(OSError):
            age_s = time.time() - files.status(TaskId.parse(task)).stat().st_mtime
            moments.append((status.monotonic_s if status else 0.0) + max(0.0, age_s))
    return max(moments)


def is_alive(files: RunFiles, record: RunRecord) -> bool:
    """Return whether the process that writes the record (the launcher, or a chief started by hand) lives.

    The kernel drops the lock with its holder. It is asked last because asking means holding it for a moment.
    """
    return launcher_lives(record) or is_locked(files.lock)


def launcher_lives(record: RunRecord) -> bool:
    return bool(
        other_host(record) is None
        and record.launcher_pid
        and record.launcher_started
        and lives(record.launcher_pid, record.launcher_started)
    )


def is_locked(lock: Path) -> bool:
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
    usage: Mapping[str, ProcessUsage],
    alive: bool,
    now_s: float,
) -> dict[str, Any]:
    """Merge the record with the tasks' own statuses; `now_s` is the monotonic clock of their machine."""
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
        "local_steps": _highest(status.local_steps for status in known),
        "rolled_back_steps": _highest(status.rolled_back_steps for status in known) or 0,
        "evaluation": _evaluation(record, known),
        "goodput": None,
        "failure": failure
        and {"task": failure.task, "message": failure.message, "traceback": failure.traceback},
        "stalled": None if stale else record.stalled,
        "unsaved": next((status.unsaved for status in known if status.unsaved), None),
        "run_dir": str(files.directory),
        "tasks": [
            _task_report(
                files,
                task,
                statuses.get(task.task),
                usage,
                stale,
                now_s,
                logs=record.keeps_logs,
                leads=(task.host, task.pid) == (record.host, record.launcher_pid),
            )
            for task in tasks
        ],
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
    usage: Mapping[str, ProcessUsage],
    stale: bool,
    now_s: float,
    *,
    logs: bool,
    leads: bool,
) -> dict[str, Any]:
    """Return the report of one task. An earlier attempt's numbers count, but are no sign of life."""
    live = record.state in LIVE_TASK_STATES and not stale
    last = status or TaskStatus(record.task, 0, "")
    reports = live and status is not None and status.attempt == record.attempt
    reported = ProcessUsage(last.cpu_percent, last.memory_bytes) if reports else ProcessUsage(None, None)
    used = usage.get(record.task, reported)
    return {
        "task": record.task,
        "state": TaskState.STOPPED if stale and record.state in LIVE_TASK_STATES else record.state,
        "pid": record.pid,
        "host": record.host or last.host or None,
        "address": record.address,
        "stage": last.stage,
        "step": last.step,
        "loss": last.loss,
        "examples_per_s": last.examples_per_s,
        "staleness_mean": last.staleness_mean,
        "stale_gradients": last.stale_gradients,
        "local_steps": last.local_steps,
        "bytes_sent": last.bytes_sent,
        "bytes_received": last.bytes_received,
        "cpu_percent": used.cpu_percent,
        "memory_bytes": used.memory_bytes,
        "restarts": record.restarts,
        "heartbeat_age_s": _age(now_s, last.monotonic_s) if reports else None,
        "waiting_for": last.waiting_for if reports else None,
        "busy_with": last.busy_with if reports else None,
        "leads": (last.leads and last.attempt == record.attempt) or None,
        "waiting_share": last.waiting_share if reports else None,
        "input_share": last.input_share if reports else None,
        "reading_s": _age(now_s, last.reading_monotonic_s) if reports else None,
        "stalled_s": _age(now_s, last.progress_monotonic_s) if reports and last.step is not None else None,
        "exit_code": record.exit_code,
        "message": record.message or (_UNHEARD if stale and not logs and not leads and record.pid else None),
        "certificate_ends": last.certificate_ends if reports else None,
        "log": str(files.log(TaskId.parse(record.task), record.attempt)) if logs else None,
    }


def _age(now_s: float, then_s: float | None) -> float | None:
    return round(max(0.0, now_s - then_s), 2) if then_s else None


def joined_records(files: RunFiles) -> list[JoinedRecord]:
    """Return the record of every worker that has joined. One whose command was killed has stopped."""
    found = [record for task in files.joined_tasks() if (record := joined_record(files, task)) is not None]
    for record in found:
        if record.owner_pid and record.task.state in LIVE_TASK_STATES and not is_owned(record):
            record.task.state = TaskState.STOPPED
    return found


def joined_record(files: RunFiles, task: TaskId) -> JoinedRecord | None:
    """Return the record of a joined worker; None for a damaged one, which must not end its reader."""
    return read_sound(files.joined(task), JoinedRecord)


def with_joined(
    files: RunFiles, tasks: Iterable[TaskRecord], ended: RunState | None = None
) -> list[TaskRecord]:
    """Return the tasks of a run and those that have joined it, whose own commands know them best.

    `ended` is the state of a run that has ended: the last status of a worker from elsewhere came after that.
    """
    records = joined_records(files)
    for record in records:
        if ended is not None and not record.owner_pid and record.task.state in LIVE_TASK_STATES:
            succeeded = ended is RunState.SUCCEEDED
            record.task.state = TaskState.SUCCEEDED if succeeded else TaskState.STOPPED
    joined = {record.task.task: record.task for record in records}
    return [*(task for task in tasks if task.task not in joined), *joined.values()]


def is_owned(record: JoinedRecord) -> bool:
    return record.task.host == socket.gethostname() and lives(record.owner_pid, record.owner_started)


WORD_MAX = 200


def first_line(message: str) -> str:
    return cut(message.partition("\n")[0], WORD_MAX)


def cut(line: str, most: int) -> str:
    """Return the beginning of a line, without what would change the state of a terminal."""
    line = plain(line)
    return line if len(line) <= most else f"{line[:most]} ..."


def lost_tasks(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        task
        for task in report["tasks"]
        if task["message"] and task["state"] in (TaskState.FAILED, TaskState.STOPPED)
    ]


def lost_texts(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for task in tasks:
        alike.setdefault((task["state"], task["message"]), []).append(task)
    return [_text(group) for group in alike.values()]


def lost_on_the_way(
    lost: Iterable[tuple[TaskState, FailureRecord]], joined: Iterable[Mapping[str, Any]] = ()
) -> str:
    """Return all tasks that a run has lost, in the order of their failures, then those that had joined."""
    own = [
        {"task": why.task, "state": state, "step": why.step, "message": why.message, "log": why.log}
        for state, why in sorted(lost, key=lambda entry: entry[1].order)
    ]
    texts = lost_texts([*own, *joined])
    more = len(texts) - NAMED_MAX
    return "; ".join(
        [*texts[:NAMED_MAX], *([f"{more} more reasons: `dtrain status` shows them"] if more > 0 else [])]
    )


def _text(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Return ``worker:1 failed at step 137: ValueError: bad batch (log: ...), likewise worker:2``."""
    first, *others = tasks
    state = "was stopped" if first["state"] == TaskState.STOPPED else "failed"
    where = "" if first["step"] is None else f" at step {first['step']}"
    log = f" (log: {first['log']})" if first["log"] else ""
    text = f"{first['task']} {state}{where}: {first_line(first['message'])}{log}"
    names = [str(task["task"]) for task in others]
    return f"{text}, likewise {shown_names(names)}" if others else text
