"""The learning rate as a function of the epoch."""

import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.errors import InputError


class LearningRateScheduler(Callback):
    """Set the learning rate at the beginning of each epoch. See `tf.keras.callbacks.LearningRateScheduler`.

    Args:
        schedule: takes the epoch, from 0, and the present rate (or the epoch alone) and returns the new rate.
        verbose: 1: say so.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        self.schedule = schedule
        self.verbose = verbose

    def get_state(self) -> dict[str, Any]:
        """Return nothing: the rate is the optimizer's."""
        return {}

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
            logs["lr"] = self.model.optimizer.learning_rate


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
