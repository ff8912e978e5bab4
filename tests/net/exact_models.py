"""A program whose numbers are exact in float32, whatever adds them up in whatever order: `exact_models.py NAME`.

Each task prints one line of JSON: what it has been given, and what it has trained. `expected` computes the same
numbers in float64 and without dtrain. With a third word, the path of a file, the leader waits for that file
between the two models.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS, BATCH, RATE, MOMENTUM = 4, 8, 0.5, 0.5
X = ((np.arange(64).reshape(16, 4) * 7 + 3) % 5 % 3 - 1).astype("float32")
Y = (np.arange(16) * 3 % 7 - 3).astype("float32").reshape(16, 1)
ROWS = (np.arange(16) * 5 % 8).reshape(16, 1)
"""No row twice in a batch."""
TABLE = np.arange(1 << 17).reshape(-1, 2).astype("float32") % 16 - 8
"""So large that its gradients are rows."""
VALUES = (np.arange(32) % 9 - 4).astype("float32").reshape(16, 1, 2)


def expected() -> dict[str, list[float]]:
    """Return what one process with the whole batch must come to, of both models."""
    inputs = np.concatenate([X, np.ones((16, 1))], axis=1)
    weights, velocity = np.array([1.0, 1, 1, 1, 0]), np.zeros(5)
    table, sums = TABLE[:8].copy(), np.full((8, 2), 0.1, "float32")
    for step in range(STEPS):
        part = slice(step * BATCH % 16, step * BATCH % 16 + BATCH)
        error = inputs[part] @ weights - Y[part, 0]
        velocity = MOMENTUM * velocity - RATE * 2 * (inputs[part].T @ error) / BATCH
        weights = weights + velocity
        rows = ROWS[part, 0]
        gradient = (table[rows] - VALUES[part, 0]) / np.float32(BATCH)
        sums[rows] += gradient * gradient
        table[rows] -= np.float32(RATE) * gradient / np.sqrt(sums[rows])
    return told(weights, np.concatenate([table, TABLE[8:]]))


def told(dense: np.ndarray, table: np.ndarray) -> dict[str, Any]:
    """Return the weights of both models: those that move as numbers, and the bytes of all as a hash."""
    digest = hashlib.sha256(dense.astype("float32").tobytes() + table.astype("float32").tobytes())
    return {"dense": dense.tolist(), "table": table[:8].ravel().tolist(), "sha256": digest.hexdigest()}


def main(name: str, awaited: str = "") -> None:
    """Train both models, and save the first."""
    import dtrain as dt

    layers = dt.layers
    with dt.get_strategy().scope():
        dense = dt.Sequential([layers.Dense(1, kernel_initializer="ones", input_shape=(4,), name="dense")])
        dense.compile(dt.optimizers.SGD(RATE, momentum=MOMENTUM), "mse", metrics=["mae"])
        table = dt.Sequential([layers.Embedding(len(TABLE), 2, input_shape=(1,), name="table")])
        table.set_weights([TABLE])
        table.compile(dt.optimizers.Adagrad(RATE, epsilon=0.0), "mse")
    epochs = STEPS * BATCH // len(X)
    history = dense.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)

    class Waits(dt.callbacks.Callback):
        """Waits as the table's first epoch begins, in the leader."""

        def on_train_begin(self, logs: Any = None) -> None:
            """Wait for the file."""
            deadline_s = time.monotonic() + 60
            while awaited and not Path(awaited).exists():
                assert time.monotonic() < deadline_s, f"waited in vain for {awaited}"
                time.sleep(0.05)

    waits = [Waits()]
    table.fit(ROWS, VALUES, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=waits)
    dense.save(f"{name}.safetensors")
    given = {
        "TF_CONFIG": os.environ.get("TF_CONFIG"),
        "variables": sorted(key for key in os.environ if key.startswith(("DTRAIN_", "TF_"))),
        "history": sorted(history.history),
    }
    weights = told(np.concatenate([each.ravel() for each in dense.get_weights()]), table.get_weights()[0])
    print("NET", json.dumps(given | weights), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
