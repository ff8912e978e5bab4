"""The workers that come to a run while it trains, each once."""

from collections.abc import Iterable, Iterator

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles, TaskRecord
from dtrain_cli.runs.joined_tasks import joined_record


class Arrivals:
    """Looks for new workers in the run directory; those of an earlier launch are known."""

    def __init__(self, files: RunFiles, planned: Iterable[TaskId]) -> None:
        """Look at nothing yet; tasks that are `planned` never join."""
        self._files = files
        self._known = {files.task(task).name for task in (*planned, *files.joined_tasks())}

    def new(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has come since the last call."""
        for task in self._files.joined_tasks(besides=self._known):
            if (record := joined_record(self._files, task)) is not None:
                self._known.add(self._files.task(task).name)
                yield record.task
