"""A callback that ends training when the loss is not finite."""

import math
from typing import Any

from dtrain.callbacks.callback import Callback, Logs


class TerminateOnNaN(Callback):
    """Stop when a batch's loss is NaN or infinite, as `tf.keras.callbacks.TerminateOnNaN` does."""

    def get_state(self) -> dict[str, Any]:
        """Return nothing: each batch is looked at alone."""
        return {}

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Check the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training", flush=True)
            self.model.stop_training = True
