"""A callback that writes event files for TensorBoard."""

import os
import time
from pathlib import Path
from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.writing import WrittenPath, writing
from dtrain.errors import SpecError
from dtrain.formats.event_files import SummaryWriter
from dtrain.learning.optimizers.schedules import LearningRateSchedule
from dtrain.process.engines import vertex

TRAIN = "train"
VALIDATION = "validation"
SHORTEST_S = 1e-6
"""The least time of an epoch, where the machine's clock was set back meanwhile."""


class TensorBoard(Callback):
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
        self.log_dir = log_dir if log_dir is not None else os.environ.get(vertex.LOGS) or "logs"
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self._writers: dict[str, SummaryWriter] = {}
        self._place: WrittenPath | None = None
        self._epoch = 0
        self._epoch_began_at_s = 0.0
        self._written_step = 0

    def get_state(self) -> dict[str, Any]:
        """Return how far it has written; another task writes files of its own beside these."""
        return {"written_step": self._written_step, "epoch_began_at_s": self._epoch_began_at_s}

    def set_state(self, state: dict[str, Any]) -> None:
        self._written_step = state["written_step"]
        self._epoch_began_at_s = state["epoch_began_at_s"]

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
        numbers["learning_rate"] = rate(done) if isinstance(rate, LearningRateSchedule) else rate
        if self.write_steps_per_second:
            numbers["steps_per_second"] = self.params["steps"] / max(
                time.time() - self._epoch_began_at_s, SHORTEST_S
            )
        for name, value in numbers.items():
            folder = VALIDATION if name.startswith("val_") else TRAIN
            self.writer(folder).scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            for name, value in self.model.weights.items():
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
