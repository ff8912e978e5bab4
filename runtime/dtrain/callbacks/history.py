"""What `fit` returns."""

from dtrain.callbacks.callback import Callback, Logs


class History(Callback):
    """`epoch`, the numbers of the epochs, and `history`, a list a number. See `tf.keras.callbacks.History`."""

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Note the numbers."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
