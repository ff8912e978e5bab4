"""Trains an embedding table of --rows rows x 16 on 1,000 rows a step; every replica prints when its steps
were done.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from step_clock import StepClock

import dtrain as dt

IDS_A_STEP = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    clock = StepClock(every=1)

    def own(context: dt.InputContext) -> dt.data.Dataset:
        def batches() -> Iterator[Any]:
            rng = np.random.default_rng(context.input_pipeline_id)
            while True:
                ids = rng.integers(0, args.rows, (IDS_A_STEP // 4, 4))
                yield ids, np.sin(ids[:, :1] * 0.37).astype(np.float32)

        return clock.watch(dt.data.Dataset.from_generator(batches))

    strategy = dt.get_strategy()
    with strategy.scope():
        table = dt.layers.Embedding(args.rows, 16, input_shape=(4,), name="table")
        model = dt.Sequential([table, dt.layers.Flatten(), dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.Adagrad(0.1), loss="mse")
    model.fit(own, epochs=1, steps_per_epoch=args.steps, verbose=0)
    clock.report()
    if strategy.is_leader:
        print("rows", model.arrays["table/embeddings"].shape[0])


main()
