"""Saves a generation on its schedule while it trains, and once more at the end, for a process that trains
alone.

In a cluster the leader's `keeper` does it, who besides gives the servers back what they lost.
"""

import threading
import time
from collections.abc import Callable

from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start

Warn = Callable[[str], None]


class CheckpointThread:
    """Runs a `Saver` on its schedule."""

    def __init__(self, saver: Saver, section: CheckpointSection, warn: Warn) -> None:
        """Begin; `warn` is told of a checkpoint that could not be written while training goes on."""
        self._saver = saver
        self._section = section
        self._warn = warn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def save_first(self, start: Start) -> None:
        """Write the checkpoint of the start, and go on in the background."""
        self._saver.save_start(start)
        self._schedule = CheckpointSchedule(self._section, time.monotonic(), start.version)
        self._thread.start()

    def finish(self) -> None:
        """Write the final checkpoint; the schedule ends."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._saver.save_cut(final=True)

    def stop(self) -> None:
        """The schedule ends; nothing more is written."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._schedule.wait_s(time.monotonic())):
            step = self._saver.step()
            if self._schedule.due(step, time.monotonic()):
                try:
                    self._saver.save_cut()
                except DtrainError as error:
                    if not self._stopped.is_set():
                        self._warn(f"no checkpoint of step {step}: {error}")
                self._schedule.saved(step, time.monotonic())
