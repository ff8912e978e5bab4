"""Whole trainings agree with TensorFlow's, step by step: golden file j. In one process, and over real clusters."""

import json
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
from conformance.golden import golden_dir, load_json, load_npz
from conformance.one_process import train_as_one

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

GOLDEN = load_json("j_end_to_end.json")
ARRAYS = load_npz("j_classifier.npz")
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "migrate_estimator.py")
FEATURES, LABELS = (np.array(GOLDEN[name], np.float32) for name in ("features", "labels"))
RUNS = {f"{i}-{run['driver']}": run for i, run in enumerate(GOLDEN["runs"])}
ALONE = [name for name, run in RUNS.items() if run["replicas"] == 1]
TOGETHER = [name for name, run in RUNS.items() if run["replicas"] > 1 and run["data"] == "repeat_then_batch"]
CLASSIFIERS = {case["name"]: case for case in GOLDEN["classifiers"]}
KEPT_ALONE = [name for name, case in CLASSIFIERS.items() if case["replicas"] == 1]


@pytest.fixture(autouse=True)
def alone():
    """What one test has trained, the next does not go on with."""
    with SingleStrategy().scope():
        yield


def optimizer_of(case):
    name, arguments = case["optimizer"]
    return getattr(dt.optimizers, name.rsplit(".", 1)[-1].removesuffix("Optimizer"))(**arguments)


def close(found, expected, case):
    """The trajectories' tolerance."""
    atol = 2e-5 if "Adam" in case["optimizer"][0] else 1e-5
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-4, atol=atol)


# The tutorial's model


def tutorial_model(run):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile(optimizer=optimizer_of(run), loss="mse")
    kernel, bias = np.array(GOLDEN["initial_kernel"]), np.array(GOLDEN["initial_bias"])
    model.set_weights([kernel.reshape(2, 1), bias.reshape(1)])
    return model


def tutorial_data(run):
    examples = dt.data.Dataset.from_tensor_slices((FEATURES, LABELS))
    if run["data"] == "repeat_then_batch":
        return examples.repeat().batch(run["global_batch"])
    return examples.batch(run["global_batch"], drop_remainder="drop" in run["data"]).repeat()


def noting_losses(train_step, losses):
    """The same step; the logs of a fit are means over its batches so far."""

    def noting(step):
        logs = train_step(step)
        losses.append(logs["loss"])
        return logs

    return noting


def agree(run, weights):
    """The weights after each step are TensorFlow's."""
    assert len(weights) == GOLDEN["steps"]
    for step, (kernel, bias) in enumerate(weights, start=1):
        close(np.ravel(kernel), run["kernel"][step], run)
        close(np.ravel(bias), run["bias"][step], run)


@pytest.mark.parametrize("name", ALONE)
def test_fit_in_one_process(name):
    run = RUNS[name]
    model, weights, losses = tutorial_model(run), [], []
    model.train_step = noting_losses(model.train_step, losses)
    note = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: weights.append(model.get_weights()))
    model.fit(tutorial_data(run), epochs=1, steps_per_epoch=GOLDEN["steps"], verbose=0, callbacks=[note])
    agree(run, weights)
    if expected := next((run[key] for key in ("reported_loss", "loss", "loss_sum_over_replicas") if key in run), None):
        close(losses, expected, run)
    features, labels = (np.array(GOLDEN[f"eval_{what}"], np.float32) for what in ("features", "labels"))
    evaluated = next(run[key] for key in ("eval_loss", "eval_loss_mean", "eval_loss_mean_of_batches") if key in run)
    for batch_size in (1, 2):
        close(model.evaluate(features, labels, batch_size=batch_size), evaluated, run)
    if "predictions" in run:
        close(np.ravel(model.predict(features)), run["predictions"], run)


def tutorial_steps(replicas):
    """One example a replica and step, round and round."""
    examples = cycle((FEATURES[i : i + 1], LABELS[i : i + 1]) for i in range(len(FEATURES)))
    return [list(islice(examples, replicas)) for _ in range(GOLDEN["steps"])]


@pytest.mark.parametrize("name", TOGETHER)
def test_several_replicas_computed_in_one_process(name):
    run = RUNS[name]
    agree(run, list(train_as_one(tutorial_model(run), tutorial_steps(run["replicas"]))))


@pytest.mark.parametrize(
    ("replicas", "servers", "training"),
    [
        (2, 1, {}),
        (2, 3, {}),
        (2, 3, {"placement": "greedy"}),
        (2, 2, {"partitioner": "{fixed_shards: 2}"}),
        (3, 1, {}),
        (3, 3, {"placement": "greedy", "partitioner": "{fixed_shards: 2}"}),
    ],
)
def test_a_cluster_of_synchronous_replicas(launcher, replicas, servers, training):
    sets = {"updates": "sync", "deterministic": "true", **training}
    options = [word for key, value in sets.items() for word in ("--set", f"training.{key}={value}")]
    size = ("--workers", str(replicas - 1), "--ps", str(servers), "--no-evaluator")
    launch = launcher.start(*size, *options, EXAMPLE, "--print_weights", "--max_steps", str(GOLDEN["steps"]))
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    lines = [line.split() for line in launch.log("chief:0").splitlines() if line.startswith("weights ")]
    assert [int(line[1]) for line in lines] == list(range(1, GOLDEN["steps"] + 1))
    found = [[float(word) for word in line[2:]] for line in lines]

    runs = [RUNS[name] for name in TOGETHER if RUNS[name]["replicas"] == replicas and RUNS[name]["optimizer"][0] == "Adagrad"]
    assert runs
    for run in runs:
        agree(run, [(weights[:2], weights[2:]) for weights in found])
    twin = train_as_one(tutorial_model(runs[0]), tutorial_steps(replicas))
    expected = [[float(value) for variable in weights for value in variable.ravel()] for weights in twin]
    assert found == expected, "bit for bit what one process computes, on however many servers"


# Small classifiers


def classifier(case):
    layers = [dt.layers.Dense(6, activation="relu", input_shape=(5,)), dt.layers.Dense(3)]
    if "batchnorm" in case["architecture"]:
        layers.insert(1, dt.layers.BatchNormalization())
    model = dt.Sequential(layers)
    model.compile(
        optimizer=optimizer_of(case), loss=dt.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    model.set_weights([expected[0] for expected in classifier_weights(case)])
    return model


def classifier_weights(case):
    """For every variable its values before and after each step."""
    return [ARRAYS[f"{case['name']}/weights/{weight}"] for weight in case["weights"]]


def classifier_steps(case):
    """Every batch cut into blocks of equal size, the last smaller, one a replica.

    TensorFlow divided the sum over all examples by the global batch size, also where a batch is smaller: hence the weights.
    """
    x, y = (ARRAYS[f"{case['name']}/{what}"] for what in "xy")
    batches = [slice(start, start + case["global_batch"]) for start in range(0, case["examples"], case["global_batch"])]
    for batch in islice(cycle(batches), case["steps"]):
        block = -(-len(x[batch]) // case["replicas"])
        blocks = [slice(i * block, (i + 1) * block) for i in range(case["replicas"])]
        yield [(x[batch][own], y[batch][own], shares(case, len(x[batch][own]))) for own in blocks]


def shares(case, examples):
    """Weights that make the mean over a block, averaged over the replicas, the sum over all divided by the global batch size."""
    return np.full(examples, examples * case["replicas"] / case["global_batch"], np.float32)


def agree_in_the_end(case, model, weights):
    for variable, expected in zip(weights, classifier_weights(case), strict=True):
        close(variable, expected[-1], case)
    model.set_weights(weights)
    close(model.predict(ARRAYS[f"{case['name']}/x"]), ARRAYS[f"{case['name']}/final_logits_inference"], case)


@pytest.mark.parametrize("name", KEPT_ALONE)
def test_a_classifier_in_one_process(name):
    case = CLASSIFIERS[name]
    model, weights, losses = classifier(case), [], []
    model.train_step = noting_losses(model.train_step, losses)
    note = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: weights.append(model.get_weights()))
    steps = [step[0] for step in classifier_steps(case)]
    data = dt.data.Dataset.from_generator(lambda: iter(steps))
    history = model.fit(data, epochs=1, steps_per_epoch=case["steps"], verbose=0, callbacks=[note])
    for step, values in enumerate(weights, start=1):
        for variable, expected in zip(values, classifier_weights(case), strict=True):
            close(variable, expected[step], case)
    close(losses, ARRAYS[f"{name}/loss"], case)
    close(history.history["accuracy"][-1], case["accuracy_over_all_steps"], case)
    agree_in_the_end(case, model, model.get_weights())


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name not in KEPT_ALONE])
def test_a_classifier_of_several_replicas_computed_in_one_process(name):
    case = CLASSIFIERS[name]
    model = classifier(case)
    for step, weights in enumerate(train_as_one(model, classifier_steps(case)), start=1):
        for variable, expected in zip(weights, classifier_weights(case), strict=True):
            close(variable, expected[step], case)
    agree_in_the_end(case, model, weights)


CLASSIFIER_PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    import dtrain as dt
    from conformance.test_end_to_end_golden import CLASSIFIERS, classifier, classifier_steps

    case = CLASSIFIERS[sys.argv[1]]

    def own_blocks(context):
        steps = [step[context.input_pipeline_id] for step in classifier_steps(case)]
        return dt.data.Dataset.from_generator(lambda: iter(steps))

    strategy = dt.get_strategy()
    with strategy.scope():
        model = classifier(case)
    model.fit(own_blocks, epochs=1, steps_per_epoch=case["steps"], verbose=0)
    if strategy.is_leader:
        np.savez("weights.npz", *model.get_weights())
"""


@pytest.mark.parametrize("name", ["conv_n3", "mlp_bn_n2"])
def test_a_classifier_on_a_cluster(launcher, name, monkeypatch):
    case = CLASSIFIERS[name]
    monkeypatch.setenv("DTRAIN_GOLDEN", str(golden_dir().resolve()))
    (launcher.folder / "classify.py").write_text(
        "\n".join(line[4:] for line in CLASSIFIER_PROGRAM.format(tests=str(Path(__file__).parents[1])).splitlines())
    )
    options = ("--workers", str(case["replicas"] - 1), "--ps", "2", "--updates", "sync", "--no-evaluator")
    launch = launcher.start(*options, "--set", "training.deterministic=true", "classify.py", name)
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    found = list(np.load(launcher.folder / "weights.npz").values())
    model = classifier(case)
    *_, expected = train_as_one(model, classifier_steps(case))
    assert json.dumps([array.tolist() for array in found]) == json.dumps([array.tolist() for array in expected]), "bit for bit"
    agree_in_the_end(case, model, found)
