"""Every update adds 1/1024 to each of 819,200 weights, so they say how many updates there were. Not a test
itself.
"""

import argparse
import time

import numpy as np

import dtrain as dt

ONE_UPDATE = 1 / 1024
INPUTS, OUTPUTS = 400, 2048
"""A kernel of 3.3 MB, which costs little to compute."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pace_s", type=float, default=0.005)
    args = parser.parse_args()

    def batches():
        # The slope of the absolute error is -1 wherever the weights are.
        far_above = np.full((4, OUTPUTS), 1e6, np.float32)
        while True:
            time.sleep(args.pace_s)
            yield np.ones((4, INPUTS), np.float32), far_above

    with dt.get_strategy().scope():
        dense = dt.layers.Dense(OUTPUTS, kernel_initializer="zeros")
        model = dt.Sequential([dt.layers.Input((INPUTS,)), dense])
        model.compile(optimizer=dt.optimizers.SGD(ONE_UPDATE * OUTPUTS), loss="mae")
    model.fit(
        lambda context: dt.data.Dataset.from_generator(batches),
        epochs=1,
        steps_per_epoch=args.steps,
        verbose=0,
    )


if __name__ == "__main__":
    main()
