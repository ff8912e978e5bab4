"""Handwritten digits on a cluster: a small network, real data, parameter servers.

    dtrain launch examples/digits.py

1,797 images of 8x8 pixels (examples/data/README.md); a fifth of each digit is held out. The same file trains
alone with `python examples/digits.py`.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dtrain as dt

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
HELD_OUT = 0.2

Examples = tuple[NDArray[np.float32], NDArray[np.int64]]


def load_digits() -> tuple[Examples, Examples]:
    """((x, y) to train on, (x, y) held out): pixels from 0 to 1, labels 0 to 9; the split is stratified and
    always the same.
    """
    table = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
    x, y = table[:, :-1] / 16, table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    by_digit = [order[y[order] == digit] for digit in range(10)]
    held_out = np.concatenate([rows[: round(HELD_OUT * len(rows))] for rows in by_digit])
    train = np.setdiff1d(order, held_out)
    return (x[train], y[train]), (x[held_out], y[held_out])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="global steps (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="of one replica (default: %(default)s)")
    args = parser.parse_args()

    train, test = load_digits()
    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Dense(256, activation="relu"),
                dt.layers.Dropout(0.3),
                dt.layers.Dense(256, activation="relu"),
                dt.layers.Dropout(0.3),
                dt.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=dt.optimizers.Adam(dt.optimizers.schedules.CosineDecay(2e-3, args.steps)),
            loss=dt.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    epochs = min(10, args.steps)
    batch_size = args.batch_size * strategy.num_replicas_in_sync  # of one step
    batches = (
        dt.data.Dataset.from_tensor_slices(train).shuffle(len(train[1]), seed=0).repeat().batch(batch_size)
    )
    model.fit(batches, epochs=epochs, steps_per_epoch=args.steps // epochs, validation_data=test)
    if strategy.is_leader:
        loss, accuracy = model.evaluate(test)
        print(f"held-out accuracy {accuracy:.4f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
