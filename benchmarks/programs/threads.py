"""Trains 784-512-512-10 with `fit` at batch 64 a replica, with replicas in threads or in processes, or alone.

python threads.py --strategy mirrored|central_storage|alone --replicas 2 --optimizer sgd --steps 300
dtrain launch --strategy multi_worker_mirrored --workers 1 threads.py --strategy cluster
"""

import argparse
import json
import time

import numpy as np

import dtrain as dt

BATCH = 64


def strategy_of(name: str, devices: list[str]) -> dt.Strategy:
    """Return the strategy of this process."""
    if name == "mirrored":
        return dt.MirroredStrategy(devices)
    if name == "central_storage":
        return dt.distribute.experimental.CentralStorageStrategy(devices)
    return dt.get_strategy()


class Marks(dt.callbacks.Callback):
    """Notes the clocks every so many steps."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.marks: list[tuple[int, float, float]] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch % self.every == 0:
            self.marks.append((batch, time.monotonic(), time.process_time()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--strategy", choices=["mirrored", "central_storage", "alone", "cluster"], default="mirrored"
    )
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="steps from one mark of the clocks to the next")
    args = parser.parse_args()
    batch = BATCH * args.replicas
    rng = np.random.default_rng(0)
    x, y = rng.random((10 * batch, 784), np.float32), rng.integers(0, 10, 10 * batch)
    strategy = strategy_of(args.strategy, [f"CPU:{number}" for number in range(args.replicas)])
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Dense(512, "relu", input_shape=(784,)),
                dt.layers.Dense(512, "relu"),
                dt.layers.Dense(10),
            ]
        )
        model.compile(args.optimizer, dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    marks = Marks(args.every)
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat()
    history = model.fit(data, steps_per_epoch=args.steps, callbacks=[marks], verbose=0).history
    print("marks", json.dumps(marks.marks))
    print("loss", history["loss"][-1], flush=True)


if __name__ == "__main__":
    main()
