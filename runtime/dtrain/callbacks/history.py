"""The result of `fit`."""

from collections.abc import Mapping
from typing import Any

from dtrain.callbacks.callback import Callback, Logs


class History(Callback):
    """`epoch`, the numbers of the epochs, and `history`, a list a number. See `tf.keras.callbacks.History`.

    It is the same in every task of a run, also in one that was started again.
    """

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def __repr__(self) -> str:
        last = "".join(f", {name} {values[-1]:.4g}" for name, values in self.history.items())
        return f"<History of {len(self.epoch)} epochs{last}>"

    def get_state(self) -> dict[str, Any]:
        """Return the numbers."""
        return {"epoch": self.epoch, "history": self.history}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Callback.set_state`."""
        self.epoch = state["epoch"]
        self.history = state["history"]

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the epoch's numbers."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def take(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Hold these numbers, by epoch, and no others."""
        self.epoch = []
        self.history = {}
        for epoch in sorted(rows):
            self.on_epoch_end(epoch, dict(rows[epoch]))
