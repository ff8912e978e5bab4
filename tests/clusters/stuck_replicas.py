"""A program in which replicas stand still, and every example counts in its own element. Not a test itself.

`--reads` names a task that reads its third batch for ever, `--stopped` one whose process is stopped in its sixth
gradient; each of them in its first process alone. The leader prints how often every example counts. With
`--closures` the chief schedules so many closures instead, each of which reads a batch of its worker.
"""

import argparse
import json
import os
import signal
import time

import numpy as np

import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator

EXAMPLES = 60
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--reads", default="")
parser.add_argument("--stopped", default="")
parser.add_argument("--rate", type=float, default=1.0)
parser.add_argument("--closures", type=int, default=0)
args = parser.parse_args()
first = os.environ.get("DTRAIN_ATTEMPT") == "0"
me = os.environ.get("DTRAIN_TASK")
read = made = 0


def reads(x, y):
    """Read a batch; the third of the named task never comes."""
    global read
    read += 1
    if read == 3 and first and me == args.reads:
        print("STANDS STILL", flush=True)
        time.sleep(3600)
    return x, y


def stops():
    """Stop this process in the midst of its sixth batch, if it is the named one."""
    global made
    made += 1
    if made == 6 and first and me == args.stopped:
        os.kill(os.getpid(), signal.SIGSTOP)


def gradients(weights, x, y):
    """Let each example count once."""
    stops()
    time.sleep(0.03)
    mine = np.zeros(EXAMPLES, np.float32)
    mine[x.astype(int)] = -1.0
    return 0.0, {"counts": mine}


numbers = np.arange(EXAMPLES, dtype=np.float32)
data = dt.data.Dataset.from_tensor_slices((numbers, numbers)).batch(3).map(reads)
endless = data.repeat()


def add(batches):
    """Read a batch of this worker, and count this closure."""
    stops()
    next(batches)
    time.sleep(0.03)
    total.assign_add(np.int64(1))


if args.closures:
    strategy = dt.ParameterServerStrategy()
    with strategy.scope():
        total = dt.Variable(np.int64(0), dtype=np.int64)
    coordinator = ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(endless))
    for _ in range(args.closures):
        coordinator.schedule(add, args=(batches,))
    coordinator.join()
    print("COUNTS", json.dumps([int(total)]), flush=True)
else:
    model = dt.from_function(lambda rng: {"counts": np.zeros(EXAMPLES, np.float32)}, gradients)
    model.compile(dt.optimizers.SGD(args.rate))
    model.fit(data, epochs=2, verbose=0)
    if model.strategy.is_leader:
        print("COUNTS", json.dumps(np.round(model.arrays["counts"], 3).tolist()), flush=True)
