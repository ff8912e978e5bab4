"""A program with a coordinator: 200 closures add 1 each to a variable and a metric, on the servers of a cluster.

It prints the sums. While workers run closures, and until the file "go" is there, they make `killed` of them wait, so that
a test can kill workers in the midst of some.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator

CLOSURES = 200
PATIENCE_S = 60.0
folder = Path(sys.argv[1])
strategy = dt.ParameterServerStrategy()
with strategy.scope():
    total = dt.Variable(np.int64(0), dtype=np.int64)
    parts = dt.Variable(np.zeros(8, np.float32))
    model = dt.Sequential([dt.layers.Dense(2, input_shape=(3,))])
model.compile(dt.optimizers.SGD(0.125), "mse")
mean = dt.metrics.Mean()


def add(number):
    """Add 1 to a variable, and 1 to every element of another, before or after the moment of a kill."""
    total.assign_add(np.int64(1))
    if number % 20 == 10 and not (folder / "go").exists():
        (folder / f"in-{os.environ['DTRAIN_ATTEMPT']}-{os.environ['DTRAIN_INDEX']}").touch()
        until_s = time.monotonic() + PATIENCE_S
        while not (folder / "go").exists() and time.monotonic() < until_s:
            time.sleep(0.005)
    parts.assign_add(np.ones(8, np.float32))
    mean.update_state([number, number + 1])
    return number


coordinator = ClusterCoordinator(strategy)
results = [coordinator.schedule(add, args=(number,)) for number in range(CLOSURES)]
coordinator.join()
assert coordinator.fetch(results) == list(range(CLOSURES))
print("MEAN", mean.result(), mean.state["count"])
mean.reset_state()
coordinator.schedule(add, args=(0,))
coordinator.join()
print("RESET", mean.result(), mean.state["count"])
print("SUM", int(total) - 1, (parts - 1).tolist())
