"""Notices of preemption: SIGUSR1, as cluster managers send it some time before they stop a task.

Slurm does so with ``--signal=USR1@90``. A task tells of it in its status, and the leader writes a checkpoint
at once; training goes on. A `Notice` takes SIGTERM so, while something has to come to its end first.
"""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

LOOK_S = 1.0
"""How often a function that watches is asked."""
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


class Notice:
    """The notice of this process. SIGTERM only sets it; a second SIGTERM does what it did before."""

    def __init__(self, watcher: Callable[[], bool] | None = None) -> None:
        """Handle SIGTERM, if this is the main thread, and poll `watcher`."""
        self._heard = threading.Event()
        self._stopped = threading.Event()
        self._before: Any = signal.SIG_DFL
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        if watcher is not None:
            threading.Thread(target=self._watch, args=(watcher,), name="termination", daemon=True).start()

    @property
    def heard(self) -> bool:
        """Whether this process is to end soon."""
        return self._heard.is_set()

    def close(self) -> None:
        """Give SIGTERM its former handler."""
        self._stopped.set()
        if self._listens and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before)
        self._listens = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.heard:
            self._heard.set()
            return
        self.close()
        signal.raise_signal(number)

    def _watch(self, watcher: Callable[[], bool]) -> None:
        while not self._stopped.is_set():
            if watcher():
                self._heard.set()
                return
            self._stopped.wait(LOOK_S)
