"""The leader's hooks of batches are called once a step, whatever part of it the leader computes."""

import numpy as np
import pytest
from in_memory import InMemoryCluster

import dtrain as dt

X = np.random.default_rng(3).normal(size=(11, 4)).astype(np.float32)
BATCH = 4


def built():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=X.shape[1:])])
    model.compile("sgd", "mse")
    return model


def hooks(model):
    """What the hooks of two epochs are called with, and the loss of each epoch."""
    called = []
    note = dt.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: called.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: called.append(("end", batch, logs["loss"])),
    )
    history = model.fit(X, X[:, :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[note])
    return called, history.history["loss"]


@pytest.mark.parametrize(("replicas", "training"), [(2, {}), (3, {}), (2, {"replicas_to_aggregate": 5})])
def test_every_step_begins_and_ends_once(replicas, training, tmp_path):
    called, losses = InMemoryCluster(tmp_path, replicas, **training).run(built, hooks)[0]
    steps = -(-len(X) // BATCH)
    assert [each[:2] for each in called] == [
        (hook, batch) for _ in losses for batch in range(steps) for hook in ("begin", "end")
    ]
    ends = [each[2] for each in called if each[0] == "end"]
    assert [ends[steps - 1], ends[-1]] == losses
    assert np.isfinite(ends).all()
