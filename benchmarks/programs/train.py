"""Trains one of a few models for a number of global steps; every replica prints when its steps were done.

dtrain launch train.py --model line|mlp|cnn|wide|bytes|packed --steps 3000 --every 50
"""

import argparse
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
from step_clock import StepClock

import dtrain as dt


def line() -> tuple[dt.Sequential, dt.data.Dataset]:
    """y = 2x + 10, one example a step."""
    x = np.random.default_rng(0).normal(size=(10_000, 1)).astype(np.float32)
    return dt.Sequential([dt.layers.Dense(1, input_shape=(1,))]), dt.data.Dataset.from_tensor_slices(
        (x, 2 * x + 10)
    ).batch(1)


def mlp() -> tuple[dt.Sequential, dt.data.Dataset]:
    """784-512-512-10, batches of 64 examples of noise: 2.7 MB of parameters."""
    rng = np.random.default_rng(0)
    x, y = rng.random((640, 784), np.float32), rng.integers(0, 10, 640)
    layers = [
        dt.layers.Dense(512, "relu", input_shape=(784,)),
        dt.layers.Dense(512, "relu"),
        dt.layers.Dense(10),
    ]
    return dt.Sequential(layers), dt.data.Dataset.from_tensor_slices((x, y)).batch(64)


def cnn() -> tuple[dt.Sequential, dt.data.Dataset]:
    """The convolutional network of the first lesson on handwritten digits, batches of 64 images of noise."""
    rng = np.random.default_rng(0)
    x, y = rng.random((640, 28, 28, 1), np.float32), rng.integers(0, 10, 640)
    layers = [
        dt.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
        dt.layers.MaxPooling2D(),
        dt.layers.Flatten(),
        dt.layers.Dense(64, "relu"),
        dt.layers.Dense(10),
    ]
    return dt.Sequential(layers), dt.data.Dataset.from_tensor_slices((x, y)).batch(64)


class Exchange(dt.Sequential):
    """Computes next to nothing: every value is read, and every one gets a gradient. What is left of a step is
    the exchange.

    Attributes:
        exchanges_s: how long each step took, but for its gradient; the first one's begins with the model.
    """

    def __init__(self, layers: list[dt.layers.Layer]) -> None:
        super().__init__(layers)
        self.exchanges_s: list[float] = []
        self._begun_s = time.perf_counter()

    def train_step(self, step: Any) -> dict[str, float]:
        self.exchanges_s.append(time.perf_counter() - self._begun_s)
        step.write_gradients(lambda places: self._compute(step.weights, places))
        self._begun_s = time.perf_counter()
        return {"loss": float(next(iter(step.weights.values())).flat[0])}

    def _compute(self, weights: Any, places: dict[str, Any]) -> None:
        for name, place in places.items():
            np.subtract(weights[name], 1.0, out=place)


class Pieces(Exchange):
    """Computes 100 floats at a time, however many a variable has: so the exchange begins after the same
    pause.
    """

    def _compute(self, weights: Any, places: dict[str, Any]) -> None:
        for name, place in places.items():
            read, written = weights[name].reshape(-1), place.reshape(-1)
            for start in range(0, written.size, 100):
                np.subtract(read[start : start + 100], 1.0, out=written[start : start + 100])


def matrices(megabytes: float) -> tuple[dt.Sequential, dt.data.Dataset]:
    """Matrices of 4 MB, so that every server has its part; one of 4 bytes for 0 MB."""
    units = 1000 if megabytes else 1
    layers = [
        dt.layers.Dense(units, use_bias=False, input_shape=(units,))
        for _ in range(max(1, round(megabytes / 4)))
    ]
    one = np.ones((1, 1), np.float32)
    return Exchange(layers), dt.data.Dataset.from_tensor_slices((one, one)).batch(1)


def packed(variables: int) -> tuple[dt.Sequential, dt.data.Dataset]:
    """100,000 floats in one variable, or in 1,000 of 100 each."""
    inputs, units = (1, 100_000) if variables == 1 else (10, 10)
    layers = [dt.layers.Dense(units, use_bias=False, input_shape=(inputs,)) for _ in range(variables)]
    one = np.ones((1, 1), np.float32)
    return Pieces(layers), dt.data.Dataset.from_tensor_slices((one, one)).batch(1)


def wide(megabytes: float) -> tuple[dt.Sequential, dt.data.Dataset]:
    """One matrix of that size, one example a step: memory and bytes, hardly any computing."""
    units = 1000
    x = np.ones((1, round(megabytes * 250_000 / units)), np.float32)
    model = dt.Sequential([dt.layers.Dense(units, input_shape=x.shape[1:], kernel_initializer="zeros")])
    return model, dt.data.Dataset.from_tensor_slices((x, np.ones((1, units), np.float32))).batch(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["line", "mlp", "cnn", "wide", "bytes", "packed"], default="line")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps from one mark of the clock to the next")
    parser.add_argument("--optimizer", choices=["sgd", "adagrad", "adam"], default="sgd")
    parser.add_argument(
        "--megabytes", type=float, default=80, help="of the parameters of the models wide and bytes"
    )
    parser.add_argument("--variables", type=int, default=1, choices=[1, 1000], help="of the model packed")
    args = parser.parse_args()

    clock = StepClock(args.every)
    strategy = dt.get_strategy()
    with strategy.scope():
        sized = {"wide": partial(wide, args.megabytes), "bytes": partial(matrices, args.megabytes)}
        models = {"line": line, "mlp": mlp, "cnn": cnn, "packed": partial(packed, args.variables), **sized}
        model, batches = models[args.model]()
        loss = (
            dt.losses.SparseCategoricalCrossentropy(from_logits=True)
            if args.model in ("mlp", "cnn")
            else "mse"
        )
        optimizer = {"sgd": dt.optimizers.SGD, "adagrad": dt.optimizers.Adagrad, "adam": dt.optimizers.Adam}[
            args.optimizer
        ](1e-3)
        model.compile(optimizer=optimizer, loss=loss)
    model.fit(lambda context: clock.watch(batches.repeat()), steps_per_epoch=args.steps, verbose=0)
    clock.report()
    if isinstance(model, Exchange) and len(model.exchanges_s) > 1:
        print("exchange_ms", statistics.median(model.exchanges_s[1:]) * 1000, flush=True)
    if strategy.is_leader:
        print("sum", sum(float(np.sum(values)) for values in model.get_weights()), flush=True)


if __name__ == "__main__":
    main()
