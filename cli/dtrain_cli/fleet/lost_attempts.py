"""The attempts of tasks that were lost with their hosts: what the launcher keeps of each."""

import signal
import time

from dtrain.cluster import TaskId
from dtrain.runs.files import FailureRecord, RunFiles
from dtrain.runs.journal import now_text
from dtrain.runs.states import FailureKind

LOST_STATUS = -signal.SIGKILL
"""The status that a task of a lost host has ended with: its agent has killed it."""


def keep_failure(files: RunFiles, task: TaskId, attempt: int, message: str) -> None:
    """Write down why an attempt was lost, as the task itself would have."""
    record = FailureRecord(
        task=str(task),
        message=message,
        kind=FailureKind.EXIT,
        time=now_text(),
        monotonic_s=time.monotonic(),
        attempt=attempt,
        exit_code=128 - LOST_STATUS,
        log=str(files.log(task, attempt)),
    )
    path = files.failure(task, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_last_words(path, record)
