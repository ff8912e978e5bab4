"""Whole trainings agree with TensorFlow's, step by step: golden file j. In one process, and over real
clusters.
"""

import json
import re
from itertools import count, cycle, islice

import numpy as np
import pytest
from conformance.on_clusters import cluster_of
from conformance.one_process import train_as_one
from conformance.trajectories import GOLDEN, close, noting_losses, optimizer_of, shares
from in_memory import InMemoryCluster
from row_by_row import every_row

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

FEATURES, LABELS = (np.array(GOLDEN[name], np.float32) for name in ("features", "labels"))
RUNS = {f"{i}-{run['driver']}": run for i, run in enumerate(GOLDEN["runs"])}
ALONE = [name for name, run in RUNS.items() if run["replicas"] == 1]
TOGETHER = [name for name, run in RUNS.items() if run["replicas"] > 1]


@pytest.fixture
def alone():
    """What one test has trained, the next does not go on with."""
    with SingleStrategy().scope():
        yield


# The tutorial's model


def tutorial_model(run):
    model = dt.Sequential([dt.layers.Dense(LABELS.shape[1], input_shape=FEATURES.shape[1:])])
    model.compile(optimizer=optimizer_of(run), loss="mse")
    kernel, bias = (np.array(GOLDEN[f"initial_{name}"], np.float32) for name in ("kernel", "bias"))
    model.set_weights([kernel.reshape(FEATURES.shape[1], LABELS.shape[1]), bias])
    return model


def tutorial_data(run):
    examples = dt.data.Dataset.from_tensor_slices((FEATURES, LABELS))
    if run["data"] == "repeat_then_batch":
        return examples.repeat().batch(run["global_batch"])
    return examples.batch(run["global_batch"], drop_remainder="drop" in run["data"]).repeat()


def agree(run, weights):
    """The weights after each step are TensorFlow's."""
    assert len(weights) == GOLDEN["steps"]
    for step, (kernel, bias) in enumerate(weights, start=1):
        close(np.ravel(kernel), run["kernel"][step], run)
        close(np.ravel(bias), run["bias"][step], run)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ALONE)
def test_fit_in_one_process(name):
    run = RUNS[name]
    model, weights, losses = tutorial_model(run), [], []
    model.train_step = noting_losses(model.train_step, losses)
    note = dt.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(model.get_weights())
    )
    model.fit(tutorial_data(run), epochs=1, steps_per_epoch=GOLDEN["steps"], verbose=0, callbacks=[note])
    agree(run, weights)
    if expected := next(
        (run[key] for key in ("reported_loss", "loss", "loss_sum_over_replicas") if key in run), None
    ):
        close(losses, expected, run)
    features, labels = (np.array(GOLDEN[f"eval_{what}"], np.float32) for what in ("features", "labels"))
    for key, evaluated in ((key, value) for key, value in run.items() if key.startswith("eval_loss")):
        stated = re.search(r"batch_of_(\d+)$", key)
        for batch_size in [int(stated[1])] if stated else [1, 2]:
            close(model.evaluate(features, labels, batch_size=batch_size, verbose=0), evaluated, run)
    if "predictions" in run:
        close(np.ravel(model.predict(features)), run["predictions"], run)


def tutorial_batches(run):
    """The batches of a run, without end."""
    size, examples = run["global_batch"], len(FEATURES)
    if run["data"] == "repeat_then_batch":
        endless = cycle(range(examples))
        return (list(islice(endless, size)) for _ in count())
    whole = examples // size * size if "drop" in run["data"] else examples
    return cycle([list(range(start, min(start + size, whole))) for start in range(0, whole, size)])


def tutorial_steps(run):
    """Every batch cut into blocks of equal size, the last ones smaller or empty, one a replica.

    `Model.fit` takes the mean of each replica's own examples; a loop of one's own divides their sum by the
    global batch size.
    """
    replicas = run["replicas"]
    for batch in islice(tutorial_batches(run), GOLDEN["steps"]):
        block = -(-len(batch) // replicas)
        rows = [batch[i * block : (i + 1) * block] for i in range(replicas)]
        yield [(FEATURES[own], LABELS[own], *weights_in_a_loop(run, len(own))) for own in rows]


def weights_in_a_loop(run, examples):
    """The examples' weights as a tuple, which is empty where each replica takes the mean of its own
    examples.
    """
    return (shares(run, examples),) if "compute_average_loss" in run["driver"] else ()


@pytest.mark.usefixtures("alone")
@every_row("name", TOGETHER)
def test_several_replicas_computed_in_one_process(name):
    run = RUNS[name]
    agree(run, list(train_as_one(tutorial_model(run), tutorial_steps(run))))


FITTED = [name for name in TOGETHER if RUNS[name]["driver"] == "Model.fit"]


def fitted(run, model):
    """Train a replica on batches of all replicas; returns what the leader has seen: weights and logs after
    each step.
    """
    weights, losses = [], []

    def note(batch, logs):
        weights.append(model.get_weights())
        losses.append(logs["loss"])

    callback = dt.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(tutorial_data(run), epochs=1, steps_per_epoch=GOLDEN["steps"], verbose=0, callbacks=[callback])
    return weights, losses


def agree_in_fit(run, weights, losses):
    """Weights and losses are TensorFlow's; the logs of a fit are means over all examples so far."""
    agree(run, weights)
    sizes = np.array([len(batch) for batch in islice(tutorial_batches(run), GOLDEN["steps"])])
    close(losses, np.cumsum(sizes * run["reported_loss"]) / np.cumsum(sizes), run)


@every_row("name", FITTED)
def test_fit_of_several_replicas(name, tmp_path):
    run = RUNS[name]
    cluster = InMemoryCluster(tmp_path, run["replicas"], servers=2)
    agree_in_fit(run, *cluster.run(lambda: tutorial_model(run), lambda model: fitted(run, model))[0])


FIT_PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    import dtrain as dt
    from conformance.test_end_to_end_golden import RUNS, fitted, tutorial_model

    run = RUNS[sys.argv[1]]
    strategy = dt.get_strategy()
    with strategy.scope():
        model = tutorial_model(run)
    weights, losses = fitted(run, model)
    if strategy.is_leader:
        by_step = {{str(step): np.concatenate([*map(np.ravel, each)]) for step, each in enumerate(weights)}}
        np.savez("fit.npz", losses=losses, **by_step)
"""


def test_fit_on_a_cluster(launcher, monkeypatch):
    """A run of the most replicas, whose last batches are smaller."""
    uneven = [name for name in FITTED if RUNS[name]["data"] == "batch_then_repeat"]
    name = max(uneven, key=lambda name: RUNS[name]["replicas"])
    run = RUNS[name]
    cluster_of(launcher, monkeypatch, FIT_PROGRAM, name, run["replicas"], 2, [])
    kernel = FEATURES.shape[1] * LABELS.shape[1]
    with np.load(launcher.folder / "fit.npz") as found:
        weights = [found[str(step)] for step in range(GOLDEN["steps"])]
        agree_in_fit(run, [(each[:kernel], each[kernel:]) for each in weights], found["losses"])


ESTIMATOR_PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    import dtrain as dt
    from conformance.test_end_to_end_golden import FEATURES, GOLDEN, LABELS, RUNS, tutorial_model

    run = RUNS[sys.argv[1]]
    steps = []

    def input_fn():
        examples = dt.data.Dataset.from_tensor_slices((FEATURES, LABELS)).repeat()
        return examples.batch(run["global_batch"] // run["replicas"])

    def note(batch, logs):
        steps.append(np.concatenate([np.ravel(value) for value in estimator_model[0].get_weights()]))

    def model_fn():
        estimator_model.append(tutorial_model(run))
        return estimator_model[-1]

    estimator_model = []
    strategy = dt.get_strategy()
    with strategy.scope():
        callback = dt.callbacks.LambdaCallback(on_train_batch_end=note)
        train_spec = dt.TrainSpec(input_fn, GOLDEN["steps"], callbacks=[callback])
        dt.train_and_evaluate(dt.Estimator(model_fn), train_spec, dt.EvalSpec(input_fn, steps=1))
    if strategy.is_leader:
        np.save("weights.npy", np.array(steps))
"""


def shapes():
    """A run of each number of replicas, over clusters of several shapes; each replica's batches are of its
    own examples alone.

    The last of each number is that of a real cluster.
    """
    runs = {}
    for name in reversed(TOGETHER):
        run = RUNS[name]
        if run["data"] == "repeat_then_batch" and run["global_batch"] % run["replicas"] == 0:
            runs[run["replicas"]] = name
    halves = {"partitioner": {"fixed_shards": 2}}
    greedy = {"placement": "greedy"}
    fewest = min(runs, default=0)
    found = {fewest: [(1, {}), (3, {}), (3, greedy), (2, halves), (3, greedy | halves)]}
    return {runs[replicas]: found.get(replicas, [(1, {}), (3, greedy | halves)]) for replicas in sorted(runs)}


def agree_bit_for_bit(run, found):
    """Weights after each step are TensorFlow's, and exactly those that one process computes, on however many
    servers.
    """
    twin = train_as_one(tutorial_model(run), tutorial_steps(run))
    expected = np.array([np.concatenate([np.ravel(value) for value in weights]) for weights in twin])
    kernel = FEATURES.shape[1] * LABELS.shape[1]
    agree(run, [(weights[:kernel], weights[kernel:]) for weights in found])
    np.testing.assert_array_equal(found, expected, "bit for bit what one process computes", strict=True)


def fitted_on_own_examples(run, model):
    """Train a replica on batches of its own; returns the weights after each step."""
    weights = []

    def note(batch, logs):
        weights.append(np.concatenate([np.ravel(value) for value in model.get_weights()]))

    def own_batches(context):
        blocks = [step[context.input_pipeline_id] for step in tutorial_steps(run)]
        return dt.data.Dataset.from_generator(lambda: iter(blocks))

    callback = dt.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(own_batches, epochs=1, steps_per_epoch=GOLDEN["steps"], verbose=0, callbacks=[callback])
    return np.array(weights)


@every_row("name, servers, training", [(name, *shape) for name, each in shapes().items() for shape in each])
def test_synchronous_replicas_and_servers_of_every_shape(name, servers, training, tmp_path):
    run = RUNS[name]
    replicas = InMemoryCluster(tmp_path, run["replicas"], servers, deterministic=True, **training)
    found, *_ = replicas.run(lambda: tutorial_model(run), lambda model: fitted_on_own_examples(run, model))
    agree_bit_for_bit(run, found)


def test_an_estimator_on_a_cluster(launcher, monkeypatch):
    """That of the most replicas."""
    of_replicas = shapes()
    name = max(of_replicas, key=lambda name: RUNS[name]["replicas"])
    run, (servers, training) = RUNS[name], of_replicas[name][-1]
    options = [
        f"training.{key}={json.dumps(value)}" for key, value in {"deterministic": True, **training}.items()
    ]
    cluster_of(launcher, monkeypatch, ESTIMATOR_PROGRAM, name, run["replicas"], servers, options)
    agree_bit_for_bit(run, np.load(launcher.folder / "weights.npy"))


# Small classifiers
