"""A table of the epochs' numbers."""

import csv
from pathlib import Path
from typing import TextIO

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.writing import writing
from dtrain.runs.claims import claim


class CSVLogger(Callback):
    """One row an epoch: its number, then every number of the logs by name.

    See `tf.keras.callbacks.CSVLogger`.

    Args:
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

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Open the file."""
        self._columns = []
        claim(self.filename, self.model.strategy.context.run_id)
        with writing(self, self.filename) as path:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.append and path.exists() and path.stat().st_size:
                with path.open(newline="") as file:
                    self._columns = next(csv.reader(file, delimiter=self.separator))[1:]
            self._file = path.open("a" if self.append else "w", newline="")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write a row; the first one decides on the columns, NA stands for missing numbers."""
        if self._file is None or logs is None:
            return
        writer = csv.writer(self._file, delimiter=self.separator, lineterminator="\n")
        if not self._columns:
            self._columns = sorted(logs)
            if self.params.get("validates") and not any(name.startswith("val_") for name in self._columns):
                self._columns += [f"val_{name}" for name in self._columns]
            writer.writerow(["epoch", *self._columns])
        writer.writerow([epoch, *(logs.get(name, "NA") for name in self._columns)])
        with writing(self, self.filename):
            self._file.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
