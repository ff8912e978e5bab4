"""A loop of its own on several workers that saves and ends at a notice of preemption.

FOLDER of the checkpoints; the worker that sends itself SIGTERM after step 3, or -1.
"""

import os
import signal
import sys

import numpy as np

import dtrain as dt

folder, signalled = sys.argv[1], int(sys.argv[2])
strategy = dt.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    optimizer = dt.optimizers.SGD(0.1, momentum=0.9)
    seen = dt.Variable(np.float32(0))
    checkpoint = dt.train.Checkpoint(model=model, optimizer=optimizer, seen=seen)
    manager = dt.train.CheckpointManager(checkpoint, f"{folder}/w{strategy.rank}")
    handler = dt.distribute.experimental.PreemptionCheckpointHandler(None, manager)
print("RESTORED", handler.total_run_calls, float(seen), flush=True)
x = np.random.default_rng(strategy.rank).normal(size=(4, 3)).astype(np.float32)


def step():
    _, gradients = model.value_and_gradients("mse", x, x[:, :1], global_batch_size=8)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


with strategy.scope():
    for number in range(handler.total_run_calls, 30):
        handler.run(strategy.run, step)
        seen.assign_add(1.0)
        if number == 3 and strategy.rank == signalled:
            os.kill(os.getpid(), signal.SIGTERM)
weights = [value.tolist() for value in model.get_weights()]
print("FINISHED", handler.total_run_calls, int(optimizer.iterations), weights, flush=True)
