"""The MLP's gradient without any exchange, in a task of its own: milliseconds, and the losses of the first
steps of SGD.
"""

import argparse
import statistics
import time

import numpy as np
from train import mlp

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    dt.get_strategy()
    model, batches = mlp()
    model.build((784,))
    weights, loss = model.arrays, dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    gradients = {name: np.empty_like(value) for name, value in weights.items()}
    rng, losses, times_s = np.random.default_rng(0), [], []
    for step, (x, y) in zip(range(args.steps), batches.repeat(), strict=False):
        begun_s = time.perf_counter()
        result = model.network.loss_and_gradients(weights, x, y, loss, gradients, rng=rng)
        times_s.append(time.perf_counter() - begun_s)
        if step < 5:
            losses.append(round(float(result.loss), 2))
            for name, gradient in gradients.items():
                weights[name] -= 0.01 * gradient
    print(f"gradient {statistics.median(times_s) * 1000:.3f} ms, losses {losses}")


if __name__ == "__main__":
    main()
