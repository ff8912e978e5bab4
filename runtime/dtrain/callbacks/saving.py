"""Callbacks that save the model, or the state of training, and continue from it."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrain import checkpoints
from dtrain.callbacks.callback import Logs, StatefulCallback
from dtrain.callbacks.steering import MonitoringCallback
from dtrain.errors import SpecError
from dtrain.formats.remote_files import RemoteFiles, is_url
from dtrain.runs.claims import claim
from dtrain.runs.notices import Notice
from dtrain.strategies.interface import Training
from dtrain.strategies.preemption import TerminationConfig


class ModelCheckpoint(MonitoringCallback):
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

    _handed_over = ("_best", "_epoch", "_unsaved_steps", "_last_batch")

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
        super().__init__(monitor, mode, best=initial_value_threshold)
        self.filepath = str(filepath)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        self.save_freq = save_freq
        self._epoch = 0
        self._unsaved_steps = 0
        self._last_batch = -1

    @property
    def best(self) -> float:
        """Best value so far."""
        return self._best

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
            value = self._monitored(logs)
            if value is None:
                return
            if not self._improves(value):
                self._print(epoch, f"{self.monitor} did not improve from {self.best:.5f}")
                return
            note = f"{self.monitor} improved from {self.best:.5f} to {value:.5f}, saving"
            self._best = value
        path = self._path(epoch, batch, logs)
        self._print(epoch, f"{note} model to {path}")
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

    def _print(self, epoch: int, text: str) -> None:
        if self.verbose > 0:
            print(f"Epoch {epoch + 1}: {text}", flush=True)


class BackupAndRestore(StatefulCallback):
    """Keep a checkpoint of the whole training, and begin from it. See `tf.keras.callbacks.BackupAndRestore`.

    Under ``dtrain launch`` the run keeps checkpoints by itself, and ``--resume`` goes on from them; those
    come first.

    Args:
        backup_dir: a folder of its own, or a URL of its own; not shared with another callback or another fit.
        save_freq: ``epoch``, or a number of global steps.
        delete_checkpoint: empty the folder when training has ended.
        save_before_preemption: at SIGTERM save after the batch under way, and end with exit code 42. Under
            ``dtrain launch`` it has no effect: the run saves when it is stopped.

    Raises:
        SpecError: an argument is out of range.
        RunInUseError: when training begins: another run writes the folder.
    """

    _handed_over = ("_saved_step",)

    def __init__(
        self,
        backup_dir: str | Path,
        save_freq: int | str | bool | None = "epoch",
        delete_checkpoint: bool = True,
        save_before_preemption: bool = False,
    ) -> None:
        off = not save_freq and save_before_preemption
        if save_freq != "epoch" and not off and (not isinstance(save_freq, int) or save_freq < 1):
            raise SpecError(
                f"BackupAndRestore: expected save_freq 'epoch' or a number of steps, found {save_freq!r}"
            )
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.save_before_preemption = save_before_preemption
        self._notice: Notice | None = None
        self.delete_checkpoint = delete_checkpoint
        self._saved_step = 0
        self._here: TemporaryDirectory[str] | None = None
        self._copies: checkpoints.RemoteCopies | None = None
        self._training: Training

    def resume_from(self) -> Path | None:
        """Return the folder, if it has a checkpoint; of a URL, the copy here of its newest one."""
        folder = self._folder()
        if self._copies is not None:
            self._copies.fetch(folder)
        return folder if checkpoints.list_checkpoints(folder) else None

    def _folder(self) -> Path:
        """Return the folder on this machine."""
        if not is_url(self.backup_dir):
            return Path(self.backup_dir)
        if self._here is None:
            self._copies = checkpoints.RemoteCopies(str(self.backup_dir), "BackupAndRestore")
            self._here = TemporaryDirectory(prefix="dtrain-backup-")
        return Path(self._here.name)

    def set_training(self, training: Training) -> None:
        """Save this training."""
        self._training = training

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Claim the folder for this run, and count steps from here."""
        claim(self.backup_dir, self.model.strategy.context.run_id)
        self._saved_step = self._training.global_step
        if self.save_before_preemption and self.model.strategy.directory is None:
            self._notice = Notice()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after so many global steps; and save and end, if this process is to end."""
        freq = self.save_freq
        if freq and freq != "epoch" and self._training.global_step - self._saved_step >= int(freq):
            self._save()
        if self._notice is not None and self._notice.heard:
            self._notice.close()
            self._save()
            TerminationConfig().exit()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save."""
        if self.save_freq == "epoch":
            self._save()

    def _save(self) -> None:
        self._saved_step = self._training.global_step
        folder = self._folder()
        self._training.save(folder)
        if self._copies is not None:
            self._copies.claim(folder, successor=True)
            self._copies.upload(folder)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Empty the folder, if so asked."""
        if self._notice is not None:
            self._notice.close()
        if self.delete_checkpoint and (folder := self._folder()).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            if is_url(self.backup_dir):
                RemoteFiles(str(self.backup_dir), "BackupAndRestore").remove()
