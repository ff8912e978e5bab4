"""The workers that come to a run while it trains, each once."""

import contextlib
from collections.abc import Iterable, Iterator

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.messages.status import TaskStatus
from dtrain.runs.files import RunFiles, TaskRecord, read_record
from dtrain.runs.states import RunState
from dtrain_cli.console.live_table import Row
from dtrain_cli.runs.joined_tasks import joined_record, with_joined


class Arrivals:
    """Looks for new workers in the run directory; those of an earlier launch are known."""

    def __init__(self, files: RunFiles, planned: Iterable[TaskId]) -> None:
        """Look at nothing yet; tasks that are `planned` never join."""
        self._files = files
        self._here: set[str] = set()
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
        there = with_joined(self._files, (), ended) if self._here else []
        return [self._row(record) for record in there if record.task in self._here]

    def _row(self, record: TaskRecord) -> Row:
        task, said = TaskId.parse(record.task), None
        with contextlib.suppress(RunError, OSError):
            said = read_record(self._files.status(task), TaskStatus)
        return Row(task, record.state, record.restarts, said)
