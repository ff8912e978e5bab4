"""The records of workers that have joined a run, beside their status.

Of a worker that was started on the run's machine the command that owns it keeps the record; of one that came
over the network, which no command here owns, the leader does.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.errors import SpecError
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus, by_clock
from dtrain.runs.files import RunFiles, TaskRecord, read_sound, write_record
from dtrain.runs.states import LIVE_TASK_STATES, TaskState
from dtrain.runs.task_states import state_of, why_lost

ROWS_MAX = 1000
"""Of how many workers from elsewhere a record is kept: a task with the secret may claim any number."""


class JoinedRecord(msgspec.Struct):
    """A worker that has joined the run.

    `owner_pid` and `owner_started` (`started_s`) tell whether the command that owns it is still alive;
    `owner_pid` is 0 where none on the run's machine does.
    """

    owner_pid: int
    owner_started: float
    task: TaskRecord


def note(record: TaskRecord, said: TaskStatus) -> None:
    silent = f"has not been heard of for {said.silent_s:.0f} s" if said.lost else None
    record.message = why_lost(said) or silent
    record.state = TaskState.FAILED if silent and state_of(said) in LIVE_TASK_STATES else state_of(said)
    record.pid = said.pid
    record.host = said.host
    record.attempt = said.attempt
    record.exit_code = said.exit_code


def joined_name(task: str, cluster: ClusterSpec) -> TaskId | None:
    with contextlib.suppress(SpecError):
        found = TaskId.parse(task)
        return found if found.role is Role.WORKER and found not in cluster else None
    return None


def takes_folder(directory: Path) -> Callable[[int], bool]:
    """Return a function that makes the folder of a worker's index, and returns False where another process
    was first. Where no folder can be made, none says anything against an index.
    """
    files = RunFiles(directory)

    def take(index: int) -> bool:
        try:
            files.task(TaskId(Role.WORKER, index)).mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError:
            pass
        return True

    return take


def arrival_text(record: TaskRecord) -> str:
    where = f" from {record.host}" if record.host else ", and does not say from where"
    return f"{record.task} has joined{where}" + (f" (pid {record.pid})" if record.pid else "")


class JoinedFromElsewhere:
    """The leader's records, in a launch's directory, of workers that no command on this machine owns."""

    def __init__(self, files: RunFiles, cluster: ClusterSpec) -> None:
        self._files = files
        self._cluster = cluster
        self._kept: dict[TaskId, TaskRecord | None] = {}

    def update(self, reply: HeartbeatReply) -> None:
        statuses = {status.task: status for status in reply.statuses}
        for name in dict.fromkeys([*statuses, *reply.heard_of]):
            if (task := joined_name(name, self._cluster)) is not None:
                with contextlib.suppress(OSError):  # a full disk must not stop training
                    self._update(task, statuses.get(name))

    def _update(self, task: TaskId, said: TaskStatus | None) -> None:
        if task not in self._kept:
            if len(self._kept) >= ROWS_MAX:
                return
            known = read_sound(self._files.joined(task), JoinedRecord)
            is_owned = known is not None and known.owner_pid != 0
            self._kept[task] = None if is_owned else TaskRecord(str(task))
        record = self._kept[task]
        if record is None:
            return
        before = repr(record)
        if said is None:
            record.state = TaskState.RUNNING
        else:
            note(record, said)
            if record.state is TaskState.STOPPED:  # it was asked to leave, which is no loss
                record.message = None
        self._files.task(task).mkdir(parents=True, exist_ok=True)
        if repr(record) != before:
            write_record(self._files.joined(task), JoinedRecord(0, 0.0, record))
        if said is not None:
            write_record(self._files.status(task), by_clock(said, time.monotonic()))
