"""Stopping a run from another terminal: SIGTERM to its launcher, which then does everything in order."""

import os
import select
import signal

from dtrain.errors import RunError
from dtrain.runs.files import RunRecord
from dtrain_cli.runs.report import launcher_lives


def stop_launcher(record: RunRecord, wait_s: float) -> bool:
    """Ask the launcher of a run to stop it, and wait; whether it has ended.

    Raises:
        RunError: the launcher belongs to another user, or runs on another machine.
    """
    try:
        process = os.pidfd_open(record.launcher_pid or 0)
    except (ProcessLookupError, ValueError, OSError):
        raise RunError(
            f"the launcher of run {record.run} is not a process of this machine (pid {record.launcher_pid})"
        ) from None
    try:
        # The descriptor holds on to the process: its pid cannot be another process's between this check and
        # the signal.
        if not launcher_lives(record):
            return True
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # Ctrl-Z may have stopped it
        ended, _, _ = select.select([process], [], [], wait_s)
    except PermissionError:
        raise RunError(
            f"the launcher of run {record.run} (pid {record.launcher_pid}) belongs to another user"
        ) from None
    except ProcessLookupError:
        return True
    finally:
        os.close(process)
    return bool(ended)
