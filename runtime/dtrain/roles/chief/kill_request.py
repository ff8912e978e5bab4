"""The leader's request to kill a server that is past its lease; the launcher does it, and starts it again.

Rule *No silent wait* (docs/design/protocol.md#no-silent-wait).
"""

import contextlib
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.messages.status import TaskStatus
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record


def request_kill(
    run_dir: Path, task: TaskId, heard_attempt: int | None, reason: str, *, now_s: float, lease_s: float
) -> None:
    """Order it, if it is sure that the attempt that runs now is the one that does not answer.

    It is if this attempt has answered before, or if it has not even written its own status for as long: it
    stands still. Any other was started meanwhile, and is not there yet.

    Args:
        run_dir: of the run, which the launcher reads.
        task: the server.
        heard_attempt: the attempt that answered last; None if none has.
        reason: for people.
        now_s: the machine's monotonic clock.
        lease_s: how long it has been silent.
    """
    files = RunFiles(run_dir)
    with contextlib.suppress(RunError, OSError):
        status = read_record(files.status(task), TaskStatus)
        if status is not None and (status.attempt == heard_attempt or now_s - status.monotonic_s >= lease_s):
            write_record(files.kill(task, status.attempt), KillRequest(reason))
