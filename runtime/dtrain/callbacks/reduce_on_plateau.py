"""A callback that lowers the learning rate when a number stops improving."""

from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.learning_rate_scheduler import settable_rate
from dtrain.callbacks.monitor import Monitor
from dtrain.errors import SpecError


class ReduceLROnPlateau(Callback):
    """Multiply the rate by `factor` when `monitor` has not improved for `patience` epochs.

    See `tf.keras.callbacks.ReduceLROnPlateau`.

    Args:
        monitor: a name of the logs.
        factor: below 1.
        patience: how many epochs in a row.
        verbose: 1: print a line when it acts.
        mode: ``min``, ``max``, or ``auto``: by the name.
        min_delta: smaller changes are no improvement.
        cooldown: epochs to wait after a reduction before looking again.
        min_lr: never go below.

    Raises:
        SpecError: the factor is not below 1, or there is no such mode.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0,
    ) -> None:
        if factor >= 1.0:
            raise SpecError(f"ReduceLROnPlateau: expected a factor < 1.0, found {factor}")
        self.monitor = monitor
        self.factor = factor
        self.patience = patience
        self.verbose = verbose
        self.cooldown = cooldown
        self.min_lr = min_lr
        self._watched = Monitor("ReduceLROnPlateau", monitor, mode, min_delta=min_delta)
        self.wait = self.cooldown_counter = 0

    def get_state(self) -> dict[str, Any]:
        """Return the best value and how long it has lasted; the rate is the optimizer's."""
        return {"best": self._watched.best, "wait": self.wait, "cooldown_counter": self.cooldown_counter}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Callback.set_state`."""
        self._watched.reset(state["best"])
        self.wait = state["wait"]
        self.cooldown_counter = state["cooldown_counter"]

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forget an earlier training."""
        self._watched.reset()
        self.wait = self.cooldown_counter = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best one, lower the rate if due, and put it into the logs."""
        rate = settable_rate(self.model, "ReduceLROnPlateau")
        if logs is not None:
            logs["lr"] = rate
        value = self._watched.read(logs)
        if value is None:
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._watched.improves(value):
            self._watched.best = value
            self.wait = 0
        elif self.cooldown_counter == 0:
            self.wait += 1
            if self.wait >= self.patience and rate > self.min_lr:
                self._reduce(epoch, max(rate * self.factor, self.min_lr))

    def _reduce(self, epoch: int, rate: float) -> None:
        self.model.optimizer.learning_rate = rate
        if self.verbose > 0:
            print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {rate}.", flush=True)
        self.cooldown_counter = self.cooldown
        self.wait = 0
