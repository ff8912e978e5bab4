"""Pipelines of a function that end at different times, that are empty, or have empty batches: in each epoch every
example counts once, and those of pipelines whose length is not known in turn.

Each example has a weight of its own that grows by 1 each time its gradient counts.
"""

import numpy as np
import pytest
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet

import dtrain as dt
from dtrain.config import training_section
from dtrain.errors import InputError
from dtrain.strategies.mirrored import MirroredThreads

STARTS = (0, 5, 5, 7)
"""The first pipeline has 5 examples, the second none, the third 2; they are one where there is one pipeline."""
EXAMPLES, EPOCHS = STARTS[-1], 2


def pipeline(context):
    pipelines, own = context.num_input_pipelines, context.input_pipeline_id
    assert pipelines in (1, len(STARTS) - 1)
    rows = range(EXAMPLES) if pipelines == 1 else range(STARTS[own], STARTS[own + 1])
    x = np.eye(EXAMPLES, dtype=np.float32)[rows.start : rows.stop]
    return dt.data.Dataset.from_tensor_slices((x, np.full((len(x), 1), 1e6, np.float32))).batch(1)


def rows(numbers):
    x = np.eye(EXAMPLES, dtype=np.float32)[list(numbers)]
    return x, np.full((len(x), 1), 1e6, np.float32)


def of_unknown_length(context):
    """Yield what `pipeline` has, from a generator."""
    own = context.input_pipeline_id
    numbers = range(STARTS[own], STARTS[own + 1])
    return dt.data.Dataset.from_generator(lambda: (rows([number]) for number in numbers))


def nothing_at_all(context):
    return dt.data.Dataset.from_generator(lambda: iter(()))


def with_empty_batches(context):
    """Return batches of which some of each step are empty."""
    sizes = (
        [(1, 1, 1), (1, 0, 1), (0, 1, 1)]
        if context.num_input_pipelines > 1
        else [(1, 0, 1, 1, 0, 1, 1, 1, 1)]
    )
    own = sizes[context.input_pipeline_id]
    ends = np.cumsum(own) + sum(map(sum, sizes[: context.input_pipeline_id]))
    batches = [rows(range(end - size, end)) for size, end in zip(own, ends, strict=True)]
    return dt.data.Dataset.from_generator(lambda: iter(batches))


def build():
    parts = dt.get_strategy().num_replicas_in_sync
    model = dt.Sequential(
        [dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(EXAMPLES,))]
    )
    model.compile(dt.optimizers.SGD(float(parts)), "mae")
    return model


def fit(model, data=pipeline, **arguments):
    history = model.fit(data, epochs=EPOCHS, verbose=0, **arguments).history["loss"]
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
    strategy = MirroredThreads(training_section(strategy=name, replicas=3))
    with strategy.scope():
        model = build()
    assert fit(model) == ONCE_AN_EPOCH


@pytest.mark.parametrize(
    ("data", "counts"), [(of_unknown_length, [2, 1, 1, 1, 1, 3, 3]), (with_empty_batches, [2] * EXAMPLES)]
)
def test_a_part_that_is_found_to_be_empty_counts_with_gradient_0(data, counts, tmp_path):
    def fit_it(model):
        return fit(model, data, steps_per_epoch=3)

    expected = counts, EPOCHS
    assert InMemoryCluster(tmp_path / "sync", 3, 2, updates="sync").run(build, fit_it)[0] == expected
    assert ReplicaFleet(tmp_path / "fleet", 3).run(build, fit_it) == [expected] * 3
    with pytest.raises(InputError, match=r"found an empty batch: .* updates: sync"):
        InMemoryCluster(tmp_path / "async", 3, 2, updates="async").run(build, fit_it)


def test_batches_in_turn_of_which_some_are_empty_are_the_parts_of_threads():
    strategy = MirroredThreads(training_section(strategy="mirrored", replicas=3))
    with strategy.scope():
        model = build()
    assert fit(model, with_empty_batches, steps_per_epoch=3) == ONCE_AN_EPOCH


def test_all_empty_is_an_error(tmp_path):
    with pytest.raises(InputError, match="expected at least one batch, found an empty dataset"):
        InMemoryCluster(tmp_path, 3, 2, updates="sync").run(
            build, lambda model: fit(model, nothing_at_all, steps_per_epoch=3)
        )
