"""One epoch over numbered examples, each noted by the replica that computes with it. Not a test itself."""

import argparse
import time
from pathlib import Path

import numpy as np

import dtrain as dt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--examples", type=int, default=120)
    args = parser.parse_args()
    x = np.arange(args.examples, dtype=np.float32)[:, None]

    def note(number, target):
        time.sleep(0.01)
        with args.notes.open("a") as file:
            file.write(f"{int(number[0, 0])}\n")
        return number / args.examples, target

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
    model.fit(dt.data.Dataset.from_tensor_slices((x, 2 * x)).batch(1).map(note), epochs=1, verbose=0)


if __name__ == "__main__":
    main()
