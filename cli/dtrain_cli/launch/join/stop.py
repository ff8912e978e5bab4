"""The workers that have joined a run, while its launcher stops the run."""

import contextlib
import os
import signal

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain_cli.launch.policies.ordered_stop import RemainingTask
from dtrain_cli.runs.joined_tasks import is_owned, joined_record, joined_records


class JoinedWorkers:
    """The joined workers of a run that is being stopped; their owners pass on what they are told."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._told_s: dict[TaskId, float] = {}

    def there(self) -> list[RemainingTask]:
        """Return the joined workers that have not left yet."""
        owned = [TaskId.parse(record.task.task) for record in joined_records(self._files) if is_owned(record)]
        return [RemainingTask(task, self._told_s.get(task)) for task in owned]

    def signal(self, task: TaskId, number: int, now_s: float) -> None:
        """Tell one to stop, or kill it with its owner: the worker dies with it."""
        self._told_s.setdefault(task, now_s)
        record = joined_record(self._files, task)
        if record is None:
            return
        with contextlib.suppress(OSError):  # it has ended
            owner = os.pidfd_open(record.owner_pid)
            try:
                if is_owned(
                    record
                ):  # the descriptor holds on to the process: from here on no other process can get the pid
                    signal.pidfd_send_signal(owner, number)
                    signal.pidfd_send_signal(owner, signal.SIGCONT)
            finally:
                os.close(owner)
