"""A network of 3 MB with Dropout and Adam, some milliseconds a part: its weights and slots show every sum's
order and every draw.

Not a test itself.
"""

import argparse
import os
import random
import time

import numpy as np
from counted_rows import tell

import dtrain as dt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pace_s", type=float, default=0.05)
    parser.add_argument("--tell", action="store_true", help="print History and weights at the end")
    args = parser.parse_args()
    chance = random.Random(os.environ.get("TF_CONFIG", ""))
    x = np.random.default_rng(0).normal(size=(96, 5)).astype(np.float32)

    def pace(rows, targets):
        time.sleep(args.pace_s * chance.uniform(0.2, 1.8))
        return rows, targets

    with dt.get_strategy().scope():
        hidden = [
            layer
            for width in (17, 870, 870)
            for layer in (dt.layers.Dense(width, "tanh"), dt.layers.Dropout(args.dropout))
        ]
        model = dt.Sequential([dt.layers.Input((5,)), *hidden, dt.layers.Dense(1)])
        model.compile(dt.optimizers.Adam(0.01), "mse")
    data = (
        dt.data.Dataset.from_tensor_slices((x, np.sin(x.sum(axis=1, keepdims=True))))
        .shuffle(96, seed=1)
        .batch(6)
        .map(pace)
    )
    history = model.fit(data, epochs=args.epochs, verbose=0)
    if args.tell:
        tell(model, [history])


if __name__ == "__main__":
    main()
