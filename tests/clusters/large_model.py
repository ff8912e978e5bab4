"""A model of more than 1 MiB, so that all replicas of a host reduce it; a table of which a step moves the rows that it reads.

`--die TASK` kills a task as it reads its 14th batch; `--die-in-rows TASK` as it begins to make new rows in its 14th
step. `--small` is a model that the leader alone reduces.
"""

import argparse
import hashlib
import os
import signal
from itertools import count

import numpy as np

import dtrain as dt
from dtrain.collectives.step import Phase
from dtrain.roles.collective.lane_work import SliceWork

OPTIMIZERS = {
    "rows": lambda: dt.optimizers.Adagrad(0.05, global_clipnorm=0.1),
    "all": lambda: dt.optimizers.Adam(0.01, global_clipnorm=0.1),
}


def die_in_rows():
    work, made = SliceWork.work, count(1)

    def works(self, phase, number, slices):
        if phase is Phase.ROWS and next(made) == 14:
            os.kill(os.getpid(), signal.SIGKILL)
        work(self, phase, number, slices)

    SliceWork.work = works


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", choices=OPTIMIZERS, required=True)
    parser.add_argument("--die", action="append", default=[])
    parser.add_argument("--die-in-rows", action="append", default=[])
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if os.environ.get("DTRAIN_TASK") in options.die_in_rows:
        die_in_rows()
    width, units = (8, 20) if options.small else (32, 300)
    strategy = dt.distribute.get_strategy()
    drawn = np.random.default_rng(1)
    ids, targets = drawn.integers(0, 9000, (512, 4)), drawn.normal(size=(512, 1)).astype(np.float32)
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Embedding(9000, width),
                dt.layers.Flatten(),
                dt.layers.Dense(units),
                dt.layers.Dense(1),
            ]
        )
        model.compile(optimizer=OPTIMIZERS[options.moves](), loss="mse")
    read = count(1)

    def reads(words, target):
        if next(read) == 14 and os.environ.get("DTRAIN_TASK") in options.die:
            os.kill(os.getpid(), signal.SIGKILL)
        return words, target

    data = (
        dt.data.Dataset.from_tensor_slices((ids, targets)).batch(48, drop_remainder=True).map(reads).repeat()
    )
    history = model.fit(data, steps_per_epoch=10, epochs=3, verbose=0)
    weights = b"".join(np.ascontiguousarray(each).tobytes() for each in model.get_weights())
    print("TOLD", hashlib.sha256(weights).hexdigest(), [each.hex() for each in history.history["loss"]])


if __name__ == "__main__":
    main()
