"""Two variables, one on each of two servers: in both an element of its own grows by 1 with every batch. Not a
test itself.

The leader prints how often every batch counts, by variable. With `--ema` each of them is an average that the
end overwrites. `--die` kills worker:1 while its third push is on its way: on a slow link it has arrived at
one server then.
"""

import argparse
import json
import os
import signal
import threading
import time

import numpy as np

import dtrain as dt

DIES_AFTER_S = 0.3
"""Far longer than a push takes without a link that is slow, and far shorter than with it."""


def dies(gradients):
    """Whether this process has made the gradient that it dies of."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return (
        gradients == 3
        and (task["type"], task["index"]) == ("worker", 1)
        and os.environ.get("DTRAIN_ATTEMPT", "0") == "0"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--pace_s", type=float, default=0.01)
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--die", action="store_true")
    args = parser.parse_args()

    def init(rng):
        return {name: np.zeros(args.batches, np.float32) for name in ("first", "second")}

    made = 0

    def gradients(weights, x, y):
        nonlocal made
        time.sleep(args.pace_s)
        made += 1
        if args.die and dies(made):
            threading.Timer(DIES_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        mine = np.zeros(args.batches, np.float32)
        mine[int(x[0])] = -1.0
        return 0.0, {"first": mine, "second": mine.copy()}

    model = dt.from_function(init, gradients)
    model.compile(
        dt.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5) if args.ema else dt.optimizers.SGD(1.0)
    )
    numbers = np.arange(args.batches, dtype=np.float32)
    model.fit(dt.data.Dataset.from_tensor_slices((numbers, numbers)).batch(1), verbose=0)
    if model.strategy.is_leader:
        print(
            "counts",
            json.dumps({name: np.asarray(value).tolist() for name, value in model.arrays.items()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
