"""The records of workers that have joined a run, for the launcher that stops the run, `status`, `logs` and
`chaos`.

A worker that was started here is owned by its command (`dtrain_cli.launch.join`), which keeps its record.
"""

import socket
from collections.abc import Iterable

from dtrain.cluster import TaskId
from dtrain.process.living import lives
from dtrain.runs.files import RunFiles, TaskRecord, read_sound
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import LIVE_TASK_STATES, RunState, TaskState


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

    `ended` is the state of a run that has ended: the last word of a worker from elsewhere came after that.
    """
    records = joined_records(files)
    for record in records:
        if ended is not None and not record.owner_pid and record.task.state in LIVE_TASK_STATES:
            succeeded = ended is RunState.SUCCEEDED
            record.task.state = TaskState.SUCCEEDED if succeeded else TaskState.STOPPED
    joined = {record.task.task: record.task for record in records}
    return [*(task for task in tasks if task.task not in joined), *joined.values()]


def is_owned(record: JoinedRecord) -> bool:
    """Return whether the command that owns the worker is alive, on this machine."""
    return record.task.host == socket.gethostname() and lives(record.owner_pid, record.owner_started)
