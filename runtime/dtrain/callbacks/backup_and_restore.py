"""A callback that continues an interrupted training."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dtrain import checkpoints
from dtrain.callbacks.callback import Callback, Logs
from dtrain.errors import SpecError
from dtrain.formats.remote_files import RemoteFiles, is_url
from dtrain.runs.claims import claim
from dtrain.strategies.interface import Leader, StepClock, Training
from dtrain.strategies.preemption import Notice, TerminationConfig


class BackupAndRestore(Callback):
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
        self._clock: StepClock
        self._leader: Leader

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

    def get_state(self) -> dict[str, Any]:
        """Return the step of the last checkpoint."""
        return {"saved_step": self._saved_step}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Callback.set_state`."""
        self._saved_step = state["saved_step"]

    def set_training(self, training: Training) -> None:
        """Save this training."""
        assert training.leader is not None, "callbacks run on the leader"
        self._clock = training.clock
        self._leader = training.leader

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Claim the folder for this run, and count steps from here."""
        claim(self.backup_dir, self.model.strategy.context.run_id)
        self._saved_step = self._clock.global_step
        if self.save_before_preemption and self.model.strategy.directory is None:
            self._notice = Notice()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after so many global steps; and save and end, if this process is to end."""
        freq = self.save_freq
        if freq and freq != "epoch" and self._clock.global_step - self._saved_step >= int(freq):
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
        self._saved_step = self._clock.global_step
        folder = self._folder()
        self._leader.save(folder)
        if self._copies is not None:
            self._copies.claim(folder, heir=True)
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
