"""Trains one of a few models for a number of global steps; every replica prints when its steps were done.

dtrain launch train.py --model line|mlp|wide --steps 3000 --every 50
"""

import argparse

import numpy as np
from step_clock import StepClock

import dtrain as dt


def line() -> tuple[dt.Sequential, dt.data.Dataset]:
    """y = 2x + 10, one example a step."""
    x = np.random.default_rng(0).normal(size=(10_000, 1)).astype(np.float32)
    return dt.Sequential([dt.layers.Dense(1, input_shape=(1,))]), dt.data.Dataset.from_tensor_slices((x, 2 * x + 10)).batch(1)


def mlp() -> tuple[dt.Sequential, dt.data.Dataset]:
    """784-512-512-10, batches of 64 examples of noise: 2.7 MB of parameters."""
    rng = np.random.default_rng(0)
    x, y = rng.random((640, 784), np.float32), rng.integers(0, 10, 640)
    layers = [dt.layers.Dense(512, "relu", input_shape=(784,)), dt.layers.Dense(512, "relu"), dt.layers.Dense(10)]
    return dt.Sequential(layers), dt.data.Dataset.from_tensor_slices((x, y)).batch(64)


def wide(megabytes: float) -> tuple[dt.Sequential, dt.data.Dataset]:
    """One matrix of that size, one example a step: memory and bytes, hardly any computing."""
    units = 1000
    x = np.ones((1, round(megabytes * 250_000 / units)), np.float32)
    model = dt.Sequential([dt.layers.Dense(units, input_shape=x.shape[1:], kernel_initializer="zeros")])
    return model, dt.data.Dataset.from_tensor_slices((x, np.ones((1, units), np.float32))).batch(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["line", "mlp", "wide"], default="line")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps from one mark of the clock to the next")
    parser.add_argument("--optimizer", choices=["sgd", "adagrad"], default="sgd")
    parser.add_argument("--megabytes", type=float, default=80, help="of the wide model's parameters")
    args = parser.parse_args()

    clock = StepClock(args.every)
    strategy = dt.get_strategy()
    with strategy.scope():
        model, batches = wide(args.megabytes) if args.model == "wide" else {"line": line, "mlp": mlp}[args.model]()
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True) if args.model == "mlp" else "mse"
        optimizer = {"sgd": dt.optimizers.SGD, "adagrad": dt.optimizers.Adagrad}[args.optimizer](1e-3)
        model.compile(optimizer=optimizer, loss=loss)
    model.fit(lambda context: clock.watch(batches.repeat()), steps_per_epoch=args.steps, verbose=0)
    clock.report()
    if strategy.is_leader:
        print("sum", sum(float(np.sum(values)) for values in model.get_weights()), flush=True)


if __name__ == "__main__":
    main()
