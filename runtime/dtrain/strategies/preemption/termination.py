"""The notice that this process is to end soon: SIGTERM, or a function of the program that watches for it."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODE = 42
"""The exit code of a process that has saved and may be started again, as TensorFlow's is."""
LOOK_S = 1.0
"""How often a function that watches is asked."""


class TerminationConfig:
    """How a process notices that it is to end, and how it ends.

    See `tf.distribute.experimental.TerminationConfig`.

    Attributes:
        termination_watcher_fn: returns whether the process is to end soon; asked once a second beside
            SIGTERM, which is heard always.
        exit_fn: ends the process after the last checkpoint; None: ``sys.exit(42)``.
        grace_period: seconds between the notice and the end. With it a checkpoint is saved at once, training
            goes on for so long, and then another one is saved.
        save_fn: saves, in the place of the checkpoint manager.
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], Any] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn

    def exit(self) -> None:
        """End the process."""
        if self.exit_fn is None:
            sys.exit(EXIT_CODE)
        self.exit_fn()


class Notice:
    """The notice of this process. SIGTERM only sets it; a second SIGTERM does what it did before."""

    def __init__(self, watcher: Callable[[], bool] | None = None) -> None:
        """Listen to SIGTERM, if this is the main thread, and to a function that watches."""
        self._heard = threading.Event()
        self._stopped = threading.Event()
        self._before: Any = signal.SIG_DFL
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGTERM, self._hear)
        if watcher is not None:
            threading.Thread(target=self._watch, args=(watcher,), name="termination", daemon=True).start()

    @property
    def heard(self) -> bool:
        """Whether this process is to end soon."""
        return self._heard.is_set()

    def close(self) -> None:
        """Listen no more; SIGTERM does what it did before."""
        self._stopped.set()
        if self._listens and signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, self._before)
        self._listens = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
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
