"""An Estimator program, migrated: the same TF_CONFIG, the same train_and_evaluate, one Dense unit.

    dtrain launch cluster_specs/estimator.yaml examples/migrate_estimator.py
    python examples/migrate_estimator.py            # alone; the same numbers as TensorFlow's, step by step

TensorFlow's guide ("Migrate multi-worker CPU/GPU training") has a model_fn with an EstimatorSpec, which
dtrain takes as it is (tests/keras/programs/migration_estimator.py). Here a function makes and compiles a
model, and the rest of the program keeps its shape.
"""

import argparse
from typing import Any

import numpy as np

import dtrain as dt

FEATURES = np.array([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]], np.float32)
LABELS = np.array([[0.3], [0.5], [0.7]], np.float32)
EVAL_FEATURES = np.array([[4.0, 4.5], [5.0, 5.5], [6.0, 6.5]], np.float32)
EVAL_LABELS = np.array([[0.8], [0.9], [1.0]], np.float32)


def input_fn() -> dt.data.Dataset:
    """Batches of one example, for each replica its own, without end."""
    return dt.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(1).repeat()


def eval_input_fn() -> dt.data.Dataset:
    """Batches of one example."""
    return dt.data.Dataset.from_tensor_slices((EVAL_FEATURES, EVAL_LABELS)).batch(1)


class PrintWeights(dt.callbacks.Callback):
    """Prints the weights after every step of the leader, with all their digits."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        kernel, bias = self.model.get_weights()
        print("weights", batch + 1, *(repr(float(value)) for value in (*kernel.ravel(), *bias)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--max_steps", type=int, default=30)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument(
        "--weights", type=float, nargs=3, default=(0.2, -0.3, 0.1), help="first kernel (2) and bias (1)"
    )
    parser.add_argument("--print_weights", action="store_true", help="after every step")
    args = parser.parse_args()

    def model_fn() -> dt.Model:
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
        model.compile(optimizer=dt.optimizers.Adagrad(args.learning_rate), loss="mse")
        model.set_weights([np.reshape(args.weights[:2], (2, 1)), args.weights[2:]])
        return model

    strategy = dt.get_strategy()
    with strategy.scope():
        estimator = dt.Estimator(model_fn)
        train_spec = dt.TrainSpec(
            input_fn, args.max_steps, callbacks=[PrintWeights()] if args.print_weights else []
        )
        metrics, _ = dt.train_and_evaluate(estimator, train_spec, dt.EvalSpec(eval_input_fn, steps=10))
    if strategy.is_leader and metrics is not None:
        print(f"evaluation after step {args.max_steps}: loss {metrics['loss']:.9g}")


if __name__ == "__main__":
    main()
