"""Layers of 4 MB each, trained by turns within one run: with late values, early gradients, both, or neither.

dtrain launch overlap.py --layers 8 --batch 64 --steps 400 --turn-s 3
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

import dtrain as dt
from dtrain.roles.worker import arriving_values, departing_gradients

NEVER = 1 << 60
WAYS = {"neither": (NEVER, NEVER), "late": (0, NEVER), "early": (NEVER, 0), "both": (0, 0)}
"""From which size on values may come late, and gradients leave early."""


class Turns:
    """Sits between the data and the training loop, and switches. All replicas have the same clock, so they
    switch together.

    Attributes:
        steps_s: how long steps took each way; those around a switch are left out.
    """

    def __init__(self, turn_s: float) -> None:
        self.turn_s = turn_s
        self.steps_s: dict[str, list[float]] = {way: [] for way in WAYS}

    def watch(self, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The same batch for ever."""
        way, since_switch, before_s = "", 0, 0.0
        while True:
            now_s = time.monotonic()
            wanted = list(WAYS)[int(now_s / self.turn_s) % len(WAYS)]
            if wanted != way:
                way, since_switch = wanted, 0
                arriving_values.LATE_BYTES, departing_gradients.EARLY_BYTES = WAYS[way]
            elif since_switch > 2:
                self.steps_s[way].append(now_s - before_s)
            since_switch, before_s = since_switch + 1, now_s
            yield x, x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--turn-s", type=float, default=3.0)
    args = parser.parse_args()
    turns, x = Turns(args.turn_s), np.random.default_rng(0).random((args.batch, 1000), np.float32)
    with dt.get_strategy().scope():
        model = dt.Sequential(
            [dt.layers.Dense(1000, "relu", use_bias=False, input_shape=(1000,)) for _ in range(args.layers)]
        )
        model.compile(optimizer=dt.optimizers.SGD(1e-4), loss="mse")
    model.fit(
        lambda context: dt.data.Dataset.from_generator(lambda: turns.watch(x)),
        steps_per_epoch=args.steps,
        verbose=0,
    )
    for way, steps_s in turns.steps_s.items():
        if steps_s:
            print(f"{way}_ms", statistics.median(steps_s) * 1000, flush=True)


if __name__ == "__main__":
    main()
