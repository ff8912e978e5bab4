"""Trains one model under the strategy of its cluster; the leader prints the examples per second of each epoch.

dtrain launch --strategy mirrored strategies.py --model mlp --steps 100 --epochs 6
"""

import argparse
import time

import numpy as np
from train import cnn, line, mlp, wide

import dtrain as dt


class Rates(dt.callbacks.Callback):
    """Counts the examples of the epochs after the first, in which memory is taken and links are measured."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self._examples = examples
        self._begun_s = 0.0
        self.rates: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._begun_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch:
            self.rates.append(self._examples / (time.perf_counter() - self._begun_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["line", "mlp", "cnn", "wide"], default="mlp")
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="of one replica")
    args = parser.parse_args()
    strategy = dt.get_strategy()
    with strategy.scope():
        model, batches = {"line": line, "mlp": mlp, "cnn": cnn, "wide": lambda: wide(32)}[args.model]()
        loss = (
            "mse"
            if args.model in ("line", "wide")
            else dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        model.compile(optimizer=dt.optimizers.SGD(1e-3), loss=loss)
    x, y = (np.concatenate(each) for each in zip(*batches, strict=True))
    batch = args.batch * strategy.num_replicas_in_sync
    steps = args.steps if strategy.num_replicas_in_sync > 1 else args.steps * 2
    data = dt.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch)
    rates = Rates(steps * batch)
    model.fit(data, epochs=args.epochs, steps_per_epoch=steps, callbacks=[rates], verbose=0)
    if strategy.is_leader:
        print("examples_per_s", float(np.median(rates.rates)), flush=True)


if __name__ == "__main__":
    main()
