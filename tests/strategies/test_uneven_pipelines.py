"""Pipelines of a function that end at different times, and one that is empty: in each epoch every example counts once.

Each example has a weight of its own that grows by 1 each time its gradient counts.
"""

import numpy as np
import pytest
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet

import dtrain as dt
from dtrain.config import training_section
from dtrain.strategies.mirrored import Mirrored

STARTS = (0, 5, 5, 7)
"""The first pipeline has 5 examples, the second none, the third 2; they are one where there is one pipeline."""
EXAMPLES, EPOCHS = STARTS[-1], 2


def pipeline(context):
    pipelines, own = context.num_input_pipelines, context.input_pipeline_id
    assert pipelines in (1, len(STARTS) - 1)
    rows = range(EXAMPLES) if pipelines == 1 else range(STARTS[own], STARTS[own + 1])
    x = np.eye(EXAMPLES, dtype=np.float32)[rows.start : rows.stop]
    return dt.data.Dataset.from_tensor_slices((x, np.full((len(x), 1), 1e6, np.float32))).batch(1)


def build():
    parts = dt.get_strategy().num_replicas_in_sync
    model = dt.Sequential(
        [dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(EXAMPLES,))]
    )
    model.compile(dt.optimizers.SGD(float(parts)), "mae")
    return model


def fit(model):
    history = model.fit(pipeline, epochs=EPOCHS, verbose=0).history["loss"]
    return np.rint(model.get_weights()[0].ravel()).astype(int).tolist(), len(history)


ONCE_AN_EPOCH = [EPOCHS] * EXAMPLES, EPOCHS


@pytest.mark.parametrize(
    "training",
    [{"updates": "sync"}, {"updates": "async"}, {"updates": "async", "staleness_bound": 2}],
    ids=["sync", "async", "ssp"],
)
def test_on_parameter_servers(training, tmp_path):
    assert InMemoryCluster(tmp_path, 3, 2, **training).run(build, fit)[0] == ONCE_AN_EPOCH


def test_in_processes_that_reduce_among_themselves(tmp_path):
    assert ReplicaFleet(tmp_path, 3).run(build, fit) == [ONCE_AN_EPOCH] * 3


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_in_one_process_of_which_all_replicas_share_a_pipeline(name):
    strategy = Mirrored(training_section(strategy=name, replicas=3))
    with strategy.scope():
        model = build()
    assert fit(model) == ONCE_AN_EPOCH
