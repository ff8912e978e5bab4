"""Ends training when the loss is no number any more."""

import math

from dtrain.callbacks.callback import Callback, Logs


class TerminateOnNaN(Callback):
    """Stop when a batch's loss is NaN or infinite. See `tf.keras.callbacks.TerminateOnNaN`.

    Its gradient is not applied in any case: what happens to one is the spec's `nan_policy`.
    """

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training", flush=True)
            self.model.stop_training = True
