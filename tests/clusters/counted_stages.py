"""Every stage of a pipeline has a weight for each example, which grows by 1 each time the example's gradient is applied.

Each task prints the counts of every stage. Not a test itself.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

import dtrain as dt

FAR_ABOVE = 1e6
"""The slope of the absolute error is -1 wherever the weights are."""


class Counting(dt.layers.Layer):
    """Passes its input on, and adds the weights of the examples to the last column, which the loss reads."""

    slow_s = 0.0

    def declare(self, input_shape):
        return [dt.layers.Weight("counts", (input_shape[0] - 1, 1), "zeros")]

    def output_shape(self, input_shape):
        return input_shape

    def forward(self, weights, x, call):
        time.sleep(self.slow_s)
        y = np.array(x)
        y[:, -1:] += x[:, :-1] @ weights["counts"]
        return y, x

    def backward(self, weights, x, dy, gradients, call):
        gradients["counts"][...] = x[:, :-1].T @ dy[:, -1:]
        return dy


class LastColumn(dt.layers.Layer):
    def output_shape(self, input_shape):
        return (1,)

    def forward(self, weights, x, call):
        return x[:, -1:].copy(), x.shape

    def backward(self, weights, shape, dy, gradients, call):
        dx = np.zeros(shape, np.float32)
        dx[:, -1:] = dy
        return dx


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument(
        "--wait_for", type=Path, help="a file without which no batch from `after` on is computed"
    )
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--slow", type=int, nargs="*", default=(), help="a layer that sleeps, by attempt")
    parser.add_argument("--slow_s", type=float, default=0.003, help="how long, in each forward pass")
    args = parser.parse_args()
    x = np.concatenate([np.eye(args.examples), np.zeros((args.examples, 1))], axis=1).astype(np.float32)
    y = np.full((args.examples, 1), FAR_ABOVE, np.float32)
    taken = 0

    def pace(rows, targets):
        nonlocal taken
        while args.wait_for and taken >= args.after and not args.wait_for.exists():
            time.sleep(0.01)
        taken += 1
        time.sleep(0.002)
        return rows, targets

    with dt.get_strategy().scope():
        stages = [Counting(input_shape=x.shape[1:]), *(Counting() for _ in range(args.stages - 1))]
        for layer in args.slow[int(os.environ["DTRAIN_ATTEMPT"]) :][:1]:
            stages[layer].slow_s = args.slow_s
        model = dt.Sequential([*stages, LastColumn()])
        model.compile(dt.optimizers.SGD(float(args.batch)), "mae")
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(args.batch).map(pace)
    model.fit(data, epochs=args.epochs, verbose=0)
    counts = [sorted({float(count) for count in weight.ravel()}) for weight in model.get_weights()]
    print("counts", os.environ["DTRAIN_TASK"], counts, flush=True)


if __name__ == "__main__":
    main()
