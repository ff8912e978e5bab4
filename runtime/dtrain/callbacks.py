"""What may happen beside training, on the leader: Keras's callbacks.

A callback's methods are called with `logs`, a dict of numbers: the means over the epoch so far, in `on_epoch_end` also `val_*`.
Source: `tf.keras.callbacks`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Logs = Mapping[str, float]


class Callback:
    """Base of all callbacks; override what you need. `model` and `params` are set before training begins."""

    model: Any = None
    params: Mapping[str, Any] = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Training begins."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Training has ended."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch, counted from 0, begins."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch has ended."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """The leader has contributed a batch; `batch` is the global step, counted from 0 in each epoch."""

    def monitors_validation(self) -> bool:
        """Whether `on_epoch_end` needs `val_*` numbers, even where an evaluator computes them elsewhere."""
        return str(getattr(self, "monitor", "")).startswith("val_")


class LambdaCallback(Callback):
    """Functions as a callback: ``LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs))``."""

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if not name.startswith("on_") or not hasattr(Callback, name):
                known = ", ".join(n for n in vars(Callback) if n.startswith("on_"))
                raise TypeError(f"LambdaCallback: expected functions among {known}; found {name}")
            setattr(self, name, function)


class History(Callback):
    """What `fit` returns: `epoch`, the numbers of the epochs, and `history`, a list a number."""

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Note the numbers."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class CallbackList:
    """Calls several callbacks in order."""

    def __init__(self, callbacks: Sequence[Callback], model: Any, params: Mapping[str, Any]) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of dtrain.callbacks.Callback, found {type(callback).__name__}")
            callback.model, callback.params = model, params

    def call(self, method: str, *arguments: Any) -> None:
        """Call one method of each."""
        for callback in self.callbacks:
            getattr(callback, method)(*arguments)

    @property
    def monitor_validation(self) -> bool:
        """Whether any needs `val_*` numbers."""
        return any(callback.monitors_validation() for callback in self.callbacks)
