"""Handwritten digits with a coordinator: the chief schedules steps and looks at results, the workers compute.

    dtrain launch --workers 4 examples/coordinator_loop.py

The chief schedules an epoch of training steps, waits for them, has the held-out digits judged in pieces by
whichever workers are free. The same file runs alone with
`python examples/coordinator_loop.py`.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from digits import load_digits

import dtrain as dt

BATCH = 64
PIECES = 6
parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--epochs", type=int, default=6, help="rounds of steps (default: %(default)s)")
parser.add_argument("--steps", type=int, default=60, help="of one round (default: %(default)s)")
args = parser.parse_args()

(train_x, train_y), (test_x, test_y) = load_digits()
strategy = dt.ParameterServerStrategy()
with strategy.scope():
    model = dt.Sequential(
        [
            dt.layers.Dense(128, activation="relu", input_shape=(64,)),
            dt.layers.Dense(10),
        ]
    )
    examples_seen = dt.Variable(np.int64(0), dtype=np.int64, trainable=False)
optimizer = dt.optimizers.Adam(2e-3)
loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches() -> dt.data.Dataset:
    """Each worker has its own, in an order of its own."""
    data = dt.data.Dataset.from_tensor_slices((train_x, train_y))
    return data.shuffle(len(train_x)).repeat().batch(BATCH)


def train(iterator: Iterator[Any]) -> float:
    """One step: gradients of the newest weights, applied on the parameter servers at once."""
    x, y = next(iterator)
    value, gradients = model.value_and_gradients(loss, x, y)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    examples_seen.assign_add(np.int64(len(x)))
    return float(value)


def judge(piece: int) -> int:
    """How many digits of a piece of the held-out ones are recognized."""
    x, y = test_x[piece::PIECES], test_y[piece::PIECES]
    return int((model.predict_on_batch(x).argmax(-1) == y).sum())


coordinator = dt.distribute.coordinator.ClusterCoordinator(strategy)
iterator = iter(coordinator.create_per_worker_dataset(batches))
for epoch in range(args.epochs):
    losses = [coordinator.schedule(train, args=(iterator,)) for _ in range(args.steps)]
    coordinator.join()
    right = coordinator.fetch([coordinator.schedule(judge, args=(piece,)) for piece in range(PIECES)])
    print(
        f"epoch {epoch + 1}: loss {np.mean(coordinator.fetch(losses)):.3f}, held-out accuracy "
        f"{sum(right) / len(test_y):.3f}, {int(examples_seen)} examples",
        flush=True,
    )
