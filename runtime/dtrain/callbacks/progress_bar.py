"""Progress of `fit` and `evaluate`: a bar on one line of a terminal, plain lines anywhere else."""

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np

from dtrain.callbacks.callback import Callback, Logs

BAR_WIDTH = 30
REDRAW_S = 0.05
CLEAR = "\r\x1b[K"


class ProgressBar(Callback):
    """One line for each epoch and each evaluation; in a terminal it grows meanwhile.

    See `tf.keras.callbacks.ProgbarLogger`.

    Args:
        verbose: 2: lines in a terminal too.
        stream: the place to write; by default stdout at the time of writing.
    """

    def __init__(self, verbose: int | str = "auto", stream: TextIO | None = None) -> None:
        self._lines_only = verbose == 2
        self._stream = stream
        self._title = ""
        self._total: int | None = None
        self._began_s = self._drawn_s = 0.0
        self._in_fit = False
        self._tested = 0

    # Hooks

    def get_state(self) -> dict[str, Any]:
        """Return nothing: each task draws its own."""
        return {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Show validations on their epoch's line from now on."""
        self._in_fit = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Show the next evaluation on a line of its own."""
        self._in_fit = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin a line."""
        self._begin(f"epoch {epoch + 1}/{self.params['epochs']}", self.params["steps"])

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Let the line grow."""
        self._draw(batch + 1, logs or {})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Complete the line."""
        self._title = f"epoch {epoch + 1}/{self.params['epochs']}"  # several may end together
        self._end(self._total, logs or {})

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Begin a line, unless this is a validation."""
        if not self._in_fit:
            self._begin("evaluation", self.params.get("steps"))
            self._tested = 0

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Let the line grow."""
        if not self._in_fit:
            self._tested = batch + 1
            self._draw(self._tested, logs or {})

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Complete the line."""
        if not self._in_fit:
            self._end(self._tested, logs or {})

    def clearing(self) -> Callback:
        """Return a callback, to be called before all others, that makes room for what they print."""
        return _Clearing(self)

    # The line

    @property
    def _out(self) -> TextIO:
        return self._stream or sys.stdout

    @property
    def _shows_bar(self) -> bool:
        return not self._lines_only and self._out.isatty()

    def _begin(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._began_s = time.monotonic()

    def _draw(self, done: int, logs: Logs) -> None:
        now_s = time.monotonic()
        if self._shows_bar and now_s - self._drawn_s >= REDRAW_S:
            self._drawn_s = now_s
            elapsed_s = now_s - self._began_s
            clock = (
                f"ETA {elapsed_s * (self._total - done) / done:.0f} s"
                if self._total
                else f"{elapsed_s:.1f} s"
            )
            width = shutil.get_terminal_size().columns - 1
            self._out.write(CLEAR + f"{self._head(done)} - {clock} - {numbers(logs)}"[:width])
            self._out.flush()

    def _end(self, done: int | None, logs: Logs) -> None:
        elapsed_s = time.monotonic() - self._began_s
        head = CLEAR + self._head(done or 0) if self._shows_bar else self._title
        self._out.write(f"{head} - {elapsed_s:.1f} s - {numbers(logs)}\n")
        self._out.flush()

    def _head(self, done: int) -> str:
        if not self._total:
            return f"{self._title} {done}"
        filled = min(BAR_WIDTH, BAR_WIDTH * done // self._total)
        bar = "=" * filled if filled == BAR_WIDTH else ("=" * filled + ">").ljust(BAR_WIDTH, ".")
        return f"{self._title} {done:{len(str(self._total))}}/{self._total} [{bar}]"

    def clear(self) -> None:
        """Remove the growing line."""
        if self._shows_bar:
            self._out.write(CLEAR)
            self._out.flush()


class _Clearing(Callback):
    """Removes a bar before other callbacks print."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def get_state(self) -> dict[str, Any]:
        """Return nothing: the bar has it."""
        return {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Make room."""
        self._bar.clear()


def numbers(logs: Mapping[str, object]) -> str:
    """Return ``loss: 0.1234 - lr: 1.0000e-05``."""
    return " - ".join(f"{name}: {_number(value)}" for name, value in logs.items())


def _number(value: object) -> str:
    if np.ndim(value) > 0:  # type: ignore[arg-type]
        return str(np.asarray(value))
    number = float(value)  # type: ignore[arg-type]
    return f"{number:.4f}" if abs(number) > 1e-3 or number == 0 else f"{number:.4e}"
