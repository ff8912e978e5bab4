"""A callback that ends training when a number stops improving."""

from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.monitor import Monitor

RISING = ("acc", "auc")


class EarlyStopping(Callback):
    """Stop when `monitor` has not improved for `patience` epochs. See `tf.keras.callbacks.EarlyStopping`.

    Args:
        monitor: a name of the logs.
        min_delta: smaller changes are no improvement.
        patience: how many epochs in a row.
        verbose: 1: print a line when it acts.
        mode: ``min``, ``max``, or ``auto``: by the name.
        baseline: a value that must be beaten for patience to begin anew.
        restore_best_weights: at the stop, go back to the weights of the best epoch. They are the leader's,
            and part of `get_state`: the next leader has them when this one dies.
        start_from_epoch: epochs before this one are not looked at.

    Raises:
        SpecError: there is no such mode.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        self.monitor = monitor
        self.patience = patience
        self.verbose = verbose
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self._watched = Monitor("EarlyStopping", monitor, mode, RISING, min_delta)
        self._begin()

    def _begin(self) -> None:
        self._watched.reset()
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights: list[Any] | None = None

    def get_state(self) -> dict[str, Any]:
        """Return the best value, how long it has lasted, and the weights of the best epoch if they are
        kept: another task then goes back to the same weights.
        """
        return {
            "best": self.best,
            "wait": self.wait,
            "stopped_epoch": self.stopped_epoch,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Callback.set_state`."""
        self._watched.reset(state["best"])
        self.wait = state["wait"]
        self.stopped_epoch = state["stopped_epoch"]
        self.best_epoch = state["best_epoch"]
        self.best_weights = state["best_weights"]

    @property
    def best(self) -> float:
        """Best value so far."""
        return self._watched.best

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forget an earlier training."""
        self._begin()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best one, and stop training if patience has run out."""
        value = self._watched.read(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        improved = self._watched.improves(value)
        if self.restore_best_weights and (improved or self.best_weights is None):
            self.best_weights = self.model.get_weights()
        self.wait += 1
        if improved:
            self._watched.best = value
            self.best_epoch = epoch
            if self.baseline is None or self._watched.improves(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self._stop(epoch)

    def _stop(self, epoch: int) -> None:
        self.stopped_epoch = epoch
        self.model.stop_training = True
        if self.best_weights is not None:
            if self.verbose > 0:
                print(
                    f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.",
                    flush=True,
                )
            self.model.set_weights(self.best_weights)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Print the epoch in which training stopped, if `verbose`."""
        if self.stopped_epoch > 0 and self.verbose > 0:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping", flush=True)
