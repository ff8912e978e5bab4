"""Callbacks that show or write how training goes: History, the progress bar, CSV, TensorBoard.

The bar takes one line of a terminal, and plain lines anywhere else. A relative path of a file begins at the
working directory; a URL is any of fsspec's.
"""

import csv
import io
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np

from dtrain.callbacks.callback import Callback, Logs, StatefulCallback
from dtrain.errors import DtrainError, SpecError
from dtrain.formats.event_files import SummaryWriter
from dtrain.formats.remote_files import RemoteFiles, is_url
from dtrain.learning.optimizers.schedules import LearningRateSchedule
from dtrain.process.engines import VERTEX_LOGS
from dtrain.runs.claims import claim


class History(StatefulCallback):
    """`epoch`, the numbers of the epochs, and `history`, a list a number. See `tf.keras.callbacks.History`.

    It is the same in every task of a run, also in one that was started again.
    """

    _handed_over = ("epoch", "history")

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def __repr__(self) -> str:
        last = "".join(f", {name} {values[-1]:.4g}" for name, values in self.history.items())
        return f"<History of {len(self.epoch)} epochs{last}>"

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the epoch's numbers."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def take(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Hold these numbers, by epoch, and no others."""
        self.epoch = []
        self.history = {}
        for epoch in sorted(rows):
            self.on_epoch_end(epoch, dict(rows[epoch]))


BAR_WIDTH = 30
REDRAW_S = 0.05
CLEAR = "\r\x1b[K"


class ProgressBar(StatefulCallback):
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


class _Clearing(StatefulCallback):
    """Removes a bar before other callbacks print."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._bar.clear()


def numbers(logs: Mapping[str, object]) -> str:
    """Return ``loss: 0.1234 - lr: 1.0000e-05``."""
    return " - ".join(f"{name}: {_number(value)}" for name, value in logs.items())


def _number(value: object) -> str:
    if np.ndim(value) > 0:  # type: ignore[arg-type]
        return str(np.asarray(value))
    number = float(value)  # type: ignore[arg-type]
    return f"{number:.4f}" if abs(number) > 1e-3 or number == 0 else f"{number:.4e}"


class CSVLogger(Callback):
    """One row an epoch: its number, then every number of the logs by name.

    See `tf.keras.callbacks.CSVLogger`.

    Args:
        filename: a path or a URL.
        separator: between columns.
        append: to an existing file; by default it is replaced.

    Raises:
        DtrainError: when training begins, or later: the file cannot be written, or another run writes it.
    """

    def __init__(self, filename: str | Path, separator: str = ",", append: bool = False) -> None:
        self.filename = filename
        self.separator = separator
        self.append = append
        self._columns: list[str] = []
        self._file: TextIO | None = None
        self._place: WrittenPath | None = None
        self._began_bytes = 0
        self._text = ""
        self._told = False

    def get_state(self) -> dict[str, Any]:
        """Return what this training has written, so that another task can write it again without a gap."""
        return {"columns": self._columns, "began_bytes": self._began_bytes, "text": self._text}

    def set_state(self, state: dict[str, Any]) -> None:
        """Write what the task before has written: a row that it had begun is written once, and the file is
        whole also on a machine that has another disk.
        """
        if self._file is None:
            return
        self._columns = state["columns"]
        with writing(self, self.filename):
            length = self._file.seek(0, os.SEEK_END)
            self._began_bytes = min(length, state["began_bytes"])
            self._file.truncate(self._began_bytes)
            self._file.seek(self._began_bytes)
            self._text = ""
            self._write(state["text"])

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Open the file."""
        self._columns = []
        self._text = ""
        claim(self.filename, self.model.strategy.context.run_id)
        self._place = WrittenPath(self, self.filename)
        if self.append:
            self._place.fetch()
        path = self._place.local
        with writing(self, self.filename):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.append and path.exists() and path.stat().st_size:
                with path.open(newline="") as file:
                    self._columns = next(csv.reader(file, delimiter=self.separator))[1:]
            self._file = path.open("a" if self.append else "w", newline="")
            self._began_bytes = self._file.tell()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a row; the first one decides on the columns, NA stands for missing numbers."""
        if self._file is None or logs is None:
            return
        rows = io.StringIO()
        writer = csv.writer(rows, delimiter=self.separator, lineterminator="\n")
        if not self._columns:
            self._columns = sorted(logs)
            if self.params.get("validates") and not any(name.startswith("val_") for name in self._columns):
                self._columns += [f"val_{name}" for name in self._columns]
            writer.writerow(["epoch", *self._columns])
        if not self._told and (more := [name for name in logs if name not in self._columns]):
            self._told = True
            warnings.warn(
                f"CSVLogger: {self.filename} has no column {', '.join(more)}; these numbers are left out",
                stacklevel=2,
            )
        writer.writerow([epoch, *(logs.get(name, "NA") for name in self._columns)])
        with writing(self, self.filename):
            self._write(rows.getvalue())

    def _write(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text)
            self._file.flush()
            self._text += text
            if self._place is not None:
                self._place.push()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._place is not None:
            self._place.close()
            self._place = None


TRAIN = "train"
VALIDATION = "validation"
SHORTEST_S = 1e-6
"""The least time of an epoch, where the machine's clock was set back meanwhile."""


class TensorBoard(StatefulCallback):
    """Write what training does for TensorBoard, below `log_dir`. See `tf.keras.callbacks.TensorBoard`.

    ``train`` and ``validation`` hold the scalars ``epoch_loss``, ``epoch_accuracy``, ... over epochs;
    ``train`` also ``epoch_learning_rate``, histograms of the weights and, as text, the model's summary. A
    callback of your own writes beside them with ``tensorboard.writer("train").scalar("tag", value, step)``
    (or `histogram`, `text`).

    Args:
        log_dir: a path, or a URL, to which the files are copied at the end of each epoch; None:
            AIP_TENSORBOARD_LOG_DIR of a job of Vertex AI, elsewhere ``logs``.
        histogram_freq: histograms every so many epochs; 0: none.
        write_graph: write the model's summary.
        write_images: False alone.
        write_steps_per_second: global steps, as ``epoch_steps_per_second``.
        update_freq: ``epoch``; ``batch`` or a number of global steps: also the batches' numbers, as
            ``batch_loss`` and so on.
        profile_batch: 0 alone.
        embeddings_freq: 0 alone.
        embeddings_metadata: None alone.

    Raises:
        SpecError: an argument asks for what dtrain does not write: images of weights, embeddings, profiles.
        DtrainError: when training begins, or later: a file cannot be written.
    """

    # The next leader continues after these, and writes its own files.
    _handed_over = ("_written_step", "_epoch_began_at_s")

    def __init__(
        self,
        log_dir: str | Path | None = None,
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: int | str = "epoch",
        profile_batch: int = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: object = None,
    ) -> None:
        asked = {
            "write_images": write_images,
            "profile_batch": profile_batch,
            "embeddings_freq": embeddings_freq,
        }
        if unwritten := [name for name, value in asked.items() if value]:
            raise SpecError(
                f"TensorBoard: dtrain writes scalars, histograms and text; leave out {', '.join(unwritten)}"
            )
        if update_freq not in ("epoch", "batch") and (not isinstance(update_freq, int) or update_freq < 1):
            raise SpecError(
                f"TensorBoard: expected update_freq epoch, batch or a number of steps, found {update_freq!r}"
            )
        self.log_dir = log_dir if log_dir is not None else os.environ.get(VERTEX_LOGS) or "logs"
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self._writers: dict[str, SummaryWriter] = {}
        self._place: WrittenPath | None = None
        self._epoch = 0
        self._epoch_began_at_s = 0.0
        self._written_step = 0

    def writer(self, name: str) -> SummaryWriter:
        """Return the writer of a folder below `log_dir`, made at its first use."""
        if name not in self._writers:
            self._place = self._place or WrittenPath(self, self.log_dir)
            with writing(self, self.log_dir):
                self._writers[name] = SummaryWriter(self._place.local / name)
        return self._writers[name]

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Write the model's summary."""
        self._written_step = 0
        if self.write_graph and self.model.has_layers:
            lines: list[str] = []
            self.model.summary(print_fn=lines.append)
            self.writer(TRAIN).text(
                "model", "\n".join(f"    {line}" for line in "\n".join(lines).splitlines()), step=0
            )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the time."""
        self._epoch = epoch
        self._epoch_began_at_s = time.time()  # by which another task may go on

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Write the numbers so far, if they are due."""
        step = self._epoch * self.params["steps"] + batch + 1
        if self.update_freq != "epoch" and step - self._written_step >= int(self.update_freq):
            self._written_step = step
            for name, value in (logs or {}).items():
                self.writer(TRAIN).scalar(f"batch_{name}", value, step)
            self.writer(TRAIN).flush()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write the epoch's numbers."""
        numbers = dict(logs or {})
        rate = self.model.optimizer.learning_rate
        done = (epoch + 1) * self.params["steps"]
        numbers["learning_rate"] = rate(done) if isinstance(rate, LearningRateSchedule) else float(rate)
        if self.write_steps_per_second:
            numbers["steps_per_second"] = self.params["steps"] / max(
                time.time() - self._epoch_began_at_s, SHORTEST_S
            )
        for name, value in numbers.items():
            folder = VALIDATION if name.startswith("val_") else TRAIN
            self.writer(folder).scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            for name, value in self.model.arrays.items():
                self.writer(TRAIN).histogram(f"{name}/histogram", value, epoch)
        with writing(self, self.log_dir):
            for writer in self._writers.values():
                writer.flush()
        if self._place is not None:
            self._place.push()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        if self._place is not None:
            self._place.push()
            self._place.close()
            self._place = None


@contextmanager
def writing(owner: object, path: str | Path) -> Iterator[Path]:
    """Let a callback write to `path`; name both in the `DtrainError` if it cannot."""
    try:
        yield Path(path)
    except OSError as error:
        raise DtrainError(
            f"{type(owner).__name__}: cannot write {path}: {error.strerror or error}"
        ) from error


class WrittenPath:
    """The file or folder that a callback writes: the path itself, or a copy here of what a URL names.

    Attributes:
        local: on this machine.
    """

    def __init__(self, owner: object, path: str | Path) -> None:
        """Find the place; nothing is made or read yet but an empty folder for a URL's copy.

        Raises:
            SpecError: nothing here knows the URL.
        """
        self._remote = RemoteFiles(str(path), type(owner).__name__) if is_url(path) else None
        self._folder = TemporaryDirectory(prefix="dtrain-upload-") if self._remote else None
        name = self._remote.name if self._remote else ""
        self.local = Path(self._folder.name, name or "there") if self._folder else Path(path)

    def fetch(self) -> None:
        """Copy the file from its URL, if it is one and is there; raise a `DtrainError`."""
        if self._remote is not None and self._remote.exists():
            self._remote.download(self.local)

    def push(self) -> None:
        """Copy what has changed to the URL, if it is one; raise a `DtrainError`."""
        if self._remote is None:
            return
        if self.local.is_dir():
            self._remote.upload_changed(self.local)
        elif self.local.exists():
            self._remote.upload(self.local)

    def close(self) -> None:
        """Remove the copy."""
        if self._folder is not None:
            self._folder.cleanup()
