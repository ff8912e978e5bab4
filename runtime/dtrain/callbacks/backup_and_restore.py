"""A callback that continues an interrupted training."""

import shutil
from pathlib import Path

from dtrain import checkpoints
from dtrain.callbacks.callback import Callback, Logs
from dtrain.errors import SpecError
from dtrain.runs.claims import claim
from dtrain.strategies.interface import Leader, StepClock, Training


class BackupAndRestore(Callback):
    """Keep a checkpoint of the whole training, and begin from it. See `tf.keras.callbacks.BackupAndRestore`.

    Under ``dtrain launch`` the run keeps checkpoints by itself, and ``--resume`` goes on from them; those
    come first.

    Args:
        backup_dir: a folder of its own; not shared with another callback or another fit.
        save_freq: ``epoch``, or a number of global steps.
        delete_checkpoint: remove the folder when training has ended.
        save_before_preemption: not offered: ``dtrain launch`` saves when it is stopped.

    Raises:
        SpecError: an argument is out of range.
        RunInUseError: when training begins: another run writes the folder.
    """

    def __init__(
        self,
        backup_dir: str | Path,
        save_freq: int | str = "epoch",
        delete_checkpoint: bool = True,
        save_before_preemption: bool = False,
    ) -> None:
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise SpecError(
                f"BackupAndRestore: expected save_freq 'epoch' or a number of steps, found {save_freq!r}"
            )
        if save_before_preemption:
            raise SpecError(
                "BackupAndRestore: save_before_preemption is not offered; dtrain launch saves when it is "
                "stopped"
            )
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self._saved_step = 0
        self._clock: StepClock
        self._leader: Leader

    def resume_from(self) -> Path | None:
        """Return the folder, if it has a checkpoint."""
        folder = Path(self.backup_dir)
        return folder if checkpoints.list_checkpoints(folder) else None

    def set_training(self, training: Training) -> None:
        """Save this training."""
        assert training.leader is not None, "callbacks run on the leader"
        self._clock = training.clock
        self._leader = training.leader

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Claim the folder for this run, and count steps from here."""
        claim(self.backup_dir, self.model.strategy.context.run_id)
        self._saved_step = self._clock.global_step

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after so many global steps."""
        if self.save_freq != "epoch" and self._clock.global_step - self._saved_step >= int(self.save_freq):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save."""
        if self.save_freq == "epoch":
            self._save()

    def _save(self) -> None:
        self._saved_step = self._clock.global_step
        self._leader.save(Path(self.backup_dir))

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Remove the folder, if so asked."""
        if self.delete_checkpoint:
            shutil.rmtree(self.backup_dir, ignore_errors=True)
