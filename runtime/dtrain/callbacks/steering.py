"""Callbacks that steer training by the numbers that they watch: its end, and its learning rate."""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from dtrain.callbacks.callback import Logs, StatefulCallback
from dtrain.errors import InputError, SpecError

MODES = ("auto", "min", "max")


class MonitoringCallback(StatefulCallback):
    """A callback that compares the number `monitor` of the logs with the best one so far."""

    def __init__(
        self,
        monitor: str,
        mode: str,
        *,
        rising: Sequence[str] = ("acc",),
        min_delta: float = 0.0,
        best: float | None = None,
    ) -> None:
        """Take the direction from `mode` (any other: `SpecError`) or, if ``auto``, from the name.

        Numbers whose name contains one of `rising` improve by rising.
        """
        if mode not in MODES:
            raise SpecError(
                f"{type(self).__name__}: expected a mode among {', '.join(MODES)}, found {mode!r}"
            )
        self.monitor = monitor
        rises = mode == "max" or (mode == "auto" and any(word in monitor for word in rising))
        self._sign = 1.0 if rises else -1.0
        self._min_delta = abs(min_delta)
        self._reset_best(best)

    def _reset_best(self, best: float | None = None) -> None:
        self._best = -self._sign * math.inf if best is None else best

    def _monitored(self, logs: Logs | None) -> float | None:
        """Return the number; None, with a warning, if it is missing."""
        value = (logs or {}).get(self.monitor)
        if value is None:
            text = (
                f"{type(self).__name__}: there is no number {self.monitor!r} to watch; there are "
                f"{', '.join(logs or {})}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return value

    def _improves(self, value: float, reference: float | None = None) -> bool:
        """Return whether a value is better than the best, or than `reference`, by more than min_delta."""
        reference = self._best if reference is None else reference
        return self._sign * value - self._min_delta > self._sign * reference


class EarlyStopping(MonitoringCallback):
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

    # Another task then goes back to the same weights.
    _handed_over = ("_best", "wait", "stopped_epoch", "best_epoch", "best_weights")

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
        super().__init__(monitor, mode, rising=("acc", "auc"), min_delta=min_delta)
        self.patience = patience
        self.verbose = verbose
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self._begin()

    def _begin(self) -> None:
        self._reset_best()
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights: list[Any] | None = None

    @property
    def best(self) -> float:
        """Best value so far."""
        return self._best

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forget an earlier training."""
        self._begin()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best one, and stop training if patience has run out."""
        value = self._monitored(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        improved = self._improves(value)
        if self.restore_best_weights and (improved or self.best_weights is None):
            self.best_weights = self.model.get_weights()
        self.wait += 1
        if improved:
            self._best = value
            self.best_epoch = epoch
            if self.baseline is None or self._improves(value, self.baseline):
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


class ReduceLROnPlateau(MonitoringCallback):
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

    _handed_over = ("_best", "wait", "cooldown_counter")  # the rate is the optimizer's

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
        super().__init__(monitor, mode, min_delta=min_delta)
        self.factor = factor
        self.patience = patience
        self.verbose = verbose
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.wait = self.cooldown_counter = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forget an earlier training."""
        self._reset_best()
        self.wait = self.cooldown_counter = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the number with the best one, lower the rate if due, and put it into the logs."""
        rate = settable_rate(self.model, "ReduceLROnPlateau")
        if logs is not None:
            logs["lr"] = rate
        value = self._monitored(logs)
        if value is None:
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._improves(value):
            self._best = value
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


class LearningRateScheduler(StatefulCallback):
    """Set the learning rate at the beginning of each epoch. See `tf.keras.callbacks.LearningRateScheduler`.

    Args:
        schedule: takes the epoch, from 0, and the present rate (or the epoch alone) and returns the new rate.
        verbose: 1: say so.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        self.schedule = schedule
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Set the rate.

        Raises:
            InputError: the schedule returned something else than a number, or the optimizer has a schedule of
                its own.
        """
        before = settable_rate(self.model, "LearningRateScheduler")
        rate = self.schedule(epoch, before) if _takes_two(self.schedule) else self.schedule(epoch)
        if not isinstance(rate, Real):
            raise InputError(
                f"LearningRateScheduler: expected a number from the schedule at epoch {epoch}, found {rate!r}"
            )
        self.model.optimizer.learning_rate = float(rate)
        if self.verbose > 0:
            print(
                f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {float(rate)}.",
                flush=True,
            )

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Put the rate into the logs."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


def _takes_two(schedule: Callable[..., float]) -> bool:
    """Return whether a function can be called with an epoch and a rate."""
    try:
        inspect.signature(schedule).bind(0, 0.0)
    except (TypeError, ValueError):  # ValueError: a function written in C may have no signature
        return False
    return True


def settable_rate(model: object, owner: str) -> float:
    """Return the optimizer's learning rate; raise an `InputError` if it is a schedule."""
    rate = model.optimizer.learning_rate  # type: ignore[attr-defined]  # a Model, which callbacks do not know
    if not isinstance(rate, Real):
        raise InputError(
            f"{owner}: expected an optimizer whose learning_rate is a number, found the schedule {rate!r}"
        )
    return float(rate)


class TerminateOnNaN(StatefulCallback):
    """Stop when a batch's loss is NaN or infinite, as `tf.keras.callbacks.TerminateOnNaN` does."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Check the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training", flush=True)
            self.model.stop_training = True
