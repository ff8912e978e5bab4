"""The run directory of a cluster that was started by hand: the leader keeps it, as a launcher would.

Every task's status reaches the leader with ps:0's answers to its heartbeats, so `dtrain status` on the
leader's machine shows them all. The directory is the one given by `--run-dir`, else a new one below the runs
directory.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import time
from datetime import datetime
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.errors import RunError, RunInUseError
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus, by_clock
from dtrain.process.assignment import TaskAssignment
from dtrain.process.life_line import started_s
from dtrain.runs import failure
from dtrain.runs.files import (
    JoinRecord,
    RunFiles,
    RunRecord,
    TaskRecord,
    default_runs_dir,
    offer_to_join,
    read_record,
    write_record,
)
from dtrain.runs.joined import ROWS_MAX, arrival_text, joined_name, note
from dtrain.runs.journal import append_event
from dtrain.runs.json_file import give_room_back, keep_room
from dtrain.runs.states import RunState, TaskState
from dtrain.runs.task_states import STOPPED


class HandRun:
    """The run directory, locked for the life of the leader."""

    def __init__(self, assignment: TaskAssignment, *, goes_on: bool = False) -> None:
        """Make the directory, or take it over; with `goes_on` in the midst of the run that it is of."""
        now = datetime.now().astimezone()
        run = f"{assignment.run_id}-{now:%Y%m%d-%H%M%S}"
        self.files = RunFiles(assignment.run_dir or default_runs_dir() / run)
        self.files.create()
        self._step = 0
        self._lost: dict[str, str] = {}
        self._begun_s = time.monotonic()
        self._lock = self.files.open_lock()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunInUseError(
                f"{self.files.directory} is in use by another run; give another --run-dir"
            ) from None
        found = read_record(self.files.run, RunRecord) if goes_on else None
        if found is not None and found.state is RunState.SUCCEEDED:
            os.close(self._lock)
            raise RunError(f"the run in {self.files.directory} has succeeded without this task")
        keep_room(self.files.directory)
        tasks = [
            TaskRecord(str(task), address=assignment.cluster.address(task))
            for task in assignment.cluster.tasks()
        ]
        self._assignment = assignment
        self._record = RunRecord(
            run=run,
            name=assignment.spec.name,
            state=RunState.RUNNING,
            started=now.isoformat(timespec="seconds"),
            launcher_pid=os.getpid(),
            launcher_started=started_s(os.getpid()),
            host=socket.gethostname(),
            keeps_logs=False,
            tasks=tasks,
        )
        self._introduce()
        write_record(self.files.spec, assignment.spec)
        self.files.kept_spec.unlink(missing_ok=True)
        write_record(self.files.run, self._record)
        cluster = assignment.cluster.to_dict()
        offer_to_join(self.files, JoinRecord(assignment.run_id, False, cluster, assignment.secret))

    def _introduce(self) -> None:
        for record in self._record.tasks:
            if record.task == str(self._assignment.task):
                record.state = TaskState.STARTING
                record.pid, record.host = os.getpid(), self._record.host
                record.attempt = self._assignment.attempt

    def give_up(self) -> None:
        """Let go of the directory, as another task leads; one that was made for this task is removed."""
        os.close(self._lock)
        if self._assignment.run_dir is None:
            shutil.rmtree(self.files.directory, ignore_errors=True)
        else:
            give_room_back(self.files.directory)

    def update(self, reply: HeartbeatReply) -> list[str]:
        """Write the states of all tasks from ps:0's answer; return the news: tasks that came or were lost."""
        known = {record.task: record for record in self._record.tasks}
        come = []
        joined = []
        lost = []
        self._step = reply.version
        for name in reply.heard_of:
            if name not in known and joined_name(name, self._assignment.cluster) and len(known) < ROWS_MAX:
                known[name] = TaskRecord(name, TaskState.RUNNING)
                self._record.tasks.append(known[name])
                joined.append(name)
        for status in reply.statuses:
            record = known.get(status.task)
            if record is None:
                record = known[status.task] = TaskRecord(status.task)
                self._record.tasks.append(record)
            if record.pid is None and status.task not in (str(self._assignment.task), *joined):
                come.append(status.task)
            before = record.message
            note(record, status)
            self._lost.pop(status.task, None)
            if record.message is not None and status.task != str(self._assignment.task):
                self._lost[status.task] = _lost_text(status, record)
                lost += [] if before else [self._lost[status.task]]
            self._write_status(TaskId.parse(status.task), status)
        with contextlib.suppress(OSError):
            write_record(self.files.run, self._record)
        there = [f"{', '.join(come)} {'is' if len(come) == 1 else 'are'} there"] if come else []
        return [*there, *[self._arrival(known[name]) for name in joined], *lost]

    def _arrival(self, record: TaskRecord) -> str:
        with contextlib.suppress(OSError):
            append_event(self.files, "joined", task=record.task, pid=record.pid, host=record.host)
        return arrival_text(record)

    def _write_status(self, task: TaskId, status: TaskStatus) -> None:
        if task == self._assignment.task:
            return  # the leader's own reporter writes that one
        path: Path = self.files.status(task)
        with contextlib.suppress(OSError):  # a full disk must not stop training
            path.parent.mkdir(parents=True, exist_ok=True)
            write_record(path, by_clock(status, time.monotonic()))

    def close(self, error: BaseException | None, step: int | None = None) -> str:
        """Record the end of the leader's program, which is the run's; return the run's last line. The
        leader may have made a newer `step` than the others have told of.
        """
        code = failure.exit_code(error) if error else 0
        state = (
            TaskState.SUCCEEDED if code == 0 else TaskState.STOPPED if code in STOPPED else TaskState.FAILED
        )
        if error and state is TaskState.FAILED:
            self._record.failure = failure.describe(error, self._assignment)
        for record in self._record.tasks:
            if record.task == str(self._assignment.task):
                record.state = state
                record.exit_code = code
            elif record.pid is not None and record.message is None:
                record.state = TaskState.SUCCEEDED if state is TaskState.SUCCEEDED else TaskState.STOPPED
        self._record.state = RunState(state)
        self._record.exit_code = code
        self._record.ended = datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            self.files.write_last_words(self.files.run, self._record)
        give_room_back(self.files.directory)
        self.files.join.unlink(missing_ok=True)
        os.close(self._lock)
        newest = max(self._step, step or 0)
        words = f"the run has {state} after {time.monotonic() - self._begun_s:.1f} s at step {newest}"
        return "; ".join([words, *self._lost.values()])


def _lost_text(status: TaskStatus, record: TaskRecord) -> str:
    where = "" if status.step is None else f" at step {status.step}"
    what = "was stopped" if record.state is TaskState.STOPPED else "failed"
    return f"{status.task} {what}{where}: {(record.message or '').partition(chr(10))[0]}"
