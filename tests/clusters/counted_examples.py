"""Every example has a weight of its own that grows by 1 each time its gradient is applied. Not a test itself.

That is so in async, and in sync with `weighting: examples` or where the replicas divide every batch. Every
task prints the History of each `fit`, as the last lines of a tutorial do; the leader prints which counts
there are.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import dtrain as dt

FAR_ABOVE = 1e6
"""The slope of the absolute error is -1 wherever the weights are."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--pace_s", type=float, default=0.005)
    parser.add_argument(
        "--wait_for",
        type=Path,
        help="a file without which the last fit computes no batch of `after` or a later one",
    )
    parser.add_argument("--after", type=int, default=0)
    args = parser.parse_args()
    x, y = np.eye(args.examples, dtype=np.float32), np.full((args.examples, 1), FAR_ABOVE, np.float32)
    fits, taken = 0, 0

    def pace(rows, targets):
        nonlocal taken
        time.sleep(args.pace_s)
        is_last = fits == args.fits
        while args.wait_for and is_last and taken >= args.after and not args.wait_for.exists():
            time.sleep(0.01)
        taken += 1
        return rows, targets

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Input((args.examples,)),
                dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
        model.compile(dt.optimizers.SGD(float(args.batch)), "mae", metrics=["accuracy"])
    print("num_replicas_in_sync", strategy.num_replicas_in_sync, flush=True)
    data = (
        dt.data.Dataset.from_tensor_slices((x, y)).shuffle(args.examples, seed=1).batch(args.batch).map(pace)
    )
    for _ in range(args.fits):
        fits, taken = fits + 1, 0
        history = model.fit(data, epochs=args.epochs, verbose=0, validation_data=(x[:10], y[:10]))
        print("history", json.dumps([history.epoch, history.history]), flush=True)
    if strategy.is_leader:
        print("counts", *sorted({float(count) for count in model.get_weights()[0].ravel()}), flush=True)
    print("best", max(history.history["val_accuracy"]), flush=True)


if __name__ == "__main__":
    main()
