"""A Keras program, migrated: the model of migrate_estimator.py with compile, fit and evaluate on parameter
servers.

dtrain launch cluster_specs/estimator.yaml examples/migrate_keras.py
"""

from typing import Any

import numpy as np
from migrate_estimator import EVAL_FEATURES, EVAL_LABELS, FEATURES, LABELS

import dtrain as dt


def dataset_fn(context: dt.InputContext) -> dt.data.Dataset:
    """Each replica's own endless stream of batches, shuffled in its own order."""
    examples = dt.data.Dataset.from_tensor_slices((FEATURES, LABELS))
    return examples.shuffle(10, seed=context.input_pipeline_id).repeat().batch(64)


def eval_dataset() -> dt.data.Dataset:
    return dt.data.Dataset.from_tensor_slices((EVAL_FEATURES, EVAL_LABELS)).repeat().batch(1)


class PrintLoss(dt.callbacks.Callback):
    """Prints the loss of every epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        print(f"epoch {epoch + 1}: loss {(logs or {})['loss']:.4f}", flush=True)


def main() -> None:
    strategy = dt.ParameterServerStrategy()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
        model.compile(optimizer=dt.optimizers.Adagrad(0.05), loss="mse")
        model.set_weights([np.array([[1.0], [0.5]]), np.zeros(1)])
    model.fit(dataset_fn, epochs=5, steps_per_epoch=10, verbose=0, callbacks=[PrintLoss()])
    if strategy.is_leader:
        print(f"evaluation: loss {model.evaluate(eval_dataset(), steps=10):.4f}")


if __name__ == "__main__":
    main()
