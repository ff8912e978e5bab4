"""A table of the epochs' numbers."""

import csv
import io
import os
import warnings
from pathlib import Path
from typing import Any, TextIO

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.writing import WrittenPath, writing
from dtrain.runs.claims import claim


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
