"""The workers that come to a run while it trains, and leave it: each once."""

from collections.abc import Iterable, Iterator

from dtrain.cluster import TaskId
from dtrain.messages.status import TaskStatus
from dtrain.runs.files import RunFiles, TaskRecord, read_sound
from dtrain.runs.states import RunState, TaskState
from dtrain.runs.task_states import STOPPED
from dtrain_cli.console.live_table import Row
from dtrain_cli.runs.joined_tasks import joined_record, with_joined
from dtrain_cli.runs.lost_tasks import first_line
from dtrain_cli.targets.signal_inbox import signal_name


class Arrivals:
    """Looks for new workers in the run directory; those of an earlier launch are known."""

    def __init__(self, files: RunFiles, planned: Iterable[TaskId]) -> None:
        """Look at nothing yet; tasks that are `planned` never join."""
        self._files = files
        self._here: set[str] = set()
        self._gone: set[str] = set()
        self._known = {files.task(task).name for task in (*planned, *files.joined_tasks())}

    def new(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has come since the last call."""
        for task in self._files.joined_tasks(besides=self._known):
            if (record := joined_record(self._files, task)) is not None:
                self._known.add(self._files.task(task).name)
                self._here.add(record.task.task)
                yield record.task

    def rows(self, ended: RunState | None) -> list[Row]:
        """Return the rows of those that have come; `ended` as in `with_joined`."""
        return [self._row(record) for record in self._there(ended)]

    def lost(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has failed or stopped since the last call."""
        for record in self._there(None) if self._here != self._gone else ():
            if record.state in (TaskState.FAILED, TaskState.STOPPED) and record.task not in self._gone:
                self._gone.add(record.task)
                yield record

    def _there(self, ended: RunState | None) -> list[TaskRecord]:
        there = with_joined(self._files, (), ended) if self._here else []
        return [record for record in there if record.task in self._here]

    def _row(self, record: TaskRecord) -> Row:
        task = TaskId.parse(record.task)
        return Row(task, record.state, record.restarts, read_sound(self._files.status(task), TaskStatus))


def departure_text(record: TaskRecord) -> str:
    """Return the line about a worker that is gone: ``worker:2 has left, asked by SIGINT (Ctrl-C)``."""
    if record.message:
        return f"{record.task} has {record.state}: {first_line(record.message)}"
    if record.exit_code in STOPPED:
        return f"{record.task} has left, asked by {signal_name(record.exit_code - 128)}"
    return f"{record.task} has left: the command that owned it has ended"
