"""A callback that saves the model, or its weights, during training."""

from pathlib import Path
from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.monitor import Monitor
from dtrain.errors import SpecError
from dtrain.runs.claims import claim


class ModelCheckpoint(Callback):
    """Save at epoch ends, or every so many steps. See `tf.keras.callbacks.ModelCheckpoint`.

    Args:
        filepath: a path or a URL; may hold ``{epoch}``, ``{batch}`` (with a number as `save_freq`) and names
            of the logs: ``{val_loss:.2f}``.
        monitor: a name of the logs.
        verbose: 1: print a line when it acts.
        save_best_only: only if `monitor` is better than ever before.
        save_weights_only: `model.save_weights` instead of `model.save`.
        mode: ``min``, ``max``, or ``auto``: by the name.
        save_freq: ``epoch``, or a number of global steps.
        options: accepted as in Keras, where they are a file system's.
        initial_value_threshold: what the first value must be better than.

    Raises:
        SpecError: there is no such mode or frequency.
        RunInUseError: when training begins, or later: another run writes the file.
    """

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: int | str = "epoch",
        options: object = None,
        initial_value_threshold: float | None = None,
    ) -> None:
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise SpecError(
                f"ModelCheckpoint: expected save_freq 'epoch' or a number of steps, found {save_freq!r}"
            )
        self.filepath = str(filepath)
        self.monitor = monitor
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        self.save_freq = save_freq
        self._watched = Monitor("ModelCheckpoint", monitor, mode)
        self._watched.reset(initial_value_threshold)
        self._epoch = 0
        self._unsaved_steps = 0
        self._last_batch = -1

    @property
    def best(self) -> float:
        """Best value so far."""
        return self._watched.best

    def get_state(self) -> dict[str, Any]:
        """Return the best value, and the steps since the last file."""
        return {
            "best": self.best,
            "epoch": self._epoch,
            "unsaved_steps": self._unsaved_steps,
            "last_batch": self._last_batch,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Callback.set_state`."""
        self._watched.reset(state["best"])
        self._epoch = state["epoch"]
        self._unsaved_steps = state["unsaved_steps"]
        self._last_batch = state["last_batch"]

    def monitors_validation(self) -> bool:
        """Return whether `save_best_only` or the file's name needs `val_*` numbers."""
        return (self.save_best_only and super().monitors_validation()) or "{val_" in self.filepath

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Claim the file now, so that a conflict shows before the first epoch; a name with numbers later."""
        if "{" not in self.filepath:
            claim(self.filepath, self.model.strategy.context.run_id)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Remember the epoch."""
        self._epoch = epoch
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after so many global steps."""
        if self.save_freq == "epoch":
            return
        self._unsaved_steps += batch - self._last_batch
        self._last_batch = batch
        if self._unsaved_steps >= int(self.save_freq):
            self._unsaved_steps = 0
            self._save_if_due(self._epoch, batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save."""
        if self.save_freq == "epoch":
            self._save_if_due(epoch, None, logs or {})

    def _save_if_due(self, epoch: int, batch: int | None, logs: Logs) -> None:
        note = "saving"
        if self.save_best_only:
            value = self._watched.read(logs)
            if value is None:
                return
            if not self._watched.improves(value):
                self._say(epoch, f"{self.monitor} did not improve from {self.best:.5f}")
                return
            note = f"{self.monitor} improved from {self.best:.5f} to {value:.5f}, saving"
            self._watched.best = value
        path = self._path(epoch, batch, logs)
        self._say(epoch, f"{note} model to {path}")
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)

    def _path(self, epoch: int, batch: int | None, logs: Logs) -> str:
        names = {"epoch": epoch + 1, **({} if batch is None else {"batch": batch + 1}), **logs}
        try:
            return self.filepath.format(**names)
        except (KeyError, IndexError) as error:
            raise SpecError(
                f"ModelCheckpoint: {self.filepath!r} names {error}; there are {', '.join(names)}"
            ) from None

    def _say(self, epoch: int, text: str) -> None:
        if self.verbose > 0:
            print(f"Epoch {epoch + 1}: {text}", flush=True)
