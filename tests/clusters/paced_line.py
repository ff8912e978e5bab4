"""A line through points, some milliseconds a step: a training that tests can watch, interrupt and spoil. Not
a test itself.
"""

import argparse
import itertools
import json
import os
import time

import numpy as np

import dtrain as dt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pace_s", type=float, default=0.005)
    parser.add_argument(
        "--trouble", choices=["raise", "nan", "other model"], help="what goes wrong, and for whom:"
    )
    parser.add_argument("--task", help="who has trouble, and who waits: worker:0; default: every task")
    parser.add_argument("--validate", action="store_true", help="give the evaluator something to do")
    parser.add_argument(
        "--width", type=int, help="of two layers in the middle: 1000 make 4 MB that cost little to compute"
    )
    parser.add_argument("--wait_for", help="a file without which nothing begins, or goes on")
    parser.add_argument(
        "--after", type=int, default=0, help="so many batches of each replica (0: nothing begins)"
    )
    args = parser.parse_args()

    def wait():
        while args.wait_for and not os.path.exists(args.wait_for):  # noqa: PTH110
            time.sleep(0.01)

    if not args.after:
        wait()
    place = json.loads(os.environ["TF_CONFIG"])["task"]
    is_meant = args.task in (None, f"{place['type']}:{place['index']}")
    trouble = args.trouble if is_meant else None

    def batches():
        rng = np.random.default_rng(0)
        for number in itertools.count():
            time.sleep(args.pace_s)
            if number == args.after and is_meant:
                wait()
            if trouble == "raise":
                raise ValueError("no more data today")
            x = rng.normal(size=(8, 1)).astype(np.float32)
            yield x * np.nan if trouble == "nan" else x, 2 * x + 10

    strategy = dt.get_strategy()
    with strategy.scope():
        layers = [dt.layers.Dense(1) for _ in range(2 if trouble == "other model" else 1)]
        wide = [
            dt.layers.Dense(args.width, kernel_initializer="zeros") for _ in range(2 if args.width else 0)
        ]
        model = dt.Sequential([dt.layers.Input((1,)), *wide, *layers])
        model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
    held_out = (np.ones((8, 1), np.float32), np.full((8, 1), 12, np.float32)) if args.validate else None

    def data(context):
        return dt.data.Dataset.from_generator(batches)

    model.fit(data, epochs=1, steps_per_epoch=args.steps, validation_data=held_out, verbose=0)
    if strategy.is_leader:
        print("weight", *model.get_weights()[0].ravel())


if __name__ == "__main__":
    main()
