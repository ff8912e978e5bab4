"""Notices of preemption: SIGUSR1, as cluster managers send it some time before they stop a task.

Slurm does so with ``--signal=USR1@90``. A task tells of it in its status, and the leader writes a checkpoint
at once; training goes on.
"""

import contextlib
import signal
import threading
from types import FrameType

_heard = 0


def heed() -> None:
    """Count SIGUSR1 from now on, unless the program has a handler of its own; it then kills no more."""
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(OSError):
            if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
                signal.signal(signal.SIGUSR1, _on_signal)


def heard() -> int:
    return _heard


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _heard
    _heard += 1
