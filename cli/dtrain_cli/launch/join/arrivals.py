"""The workers that come to a run while it trains, each once."""

from collections.abc import Iterator

from dtrain.runs.files import RunFiles, TaskRecord
from dtrain_cli.runs.joined_tasks import joined_record


class Arrivals:
    """Looks for new workers in the run directory; those of an earlier launch are known."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._known = set(files.joined_tasks())

    def new(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has come since the last call."""
        for task in self._files.joined_tasks():
            if task not in self._known and (record := joined_record(self._files, task)) is not None:
                self._known.add(task)
                yield record.task
