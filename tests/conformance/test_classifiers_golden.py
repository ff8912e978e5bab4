"""Trainings of classifiers agree with TensorFlow's, step by step: golden file j. In one process, and over real
clusters.
"""

import json
from itertools import cycle, islice

import numpy as np
import pytest
from conformance.golden import load_npz
from conformance.on_clusters import cluster_of
from conformance.one_process import train_as_one
from conformance.trajectories import GOLDEN, close, noting_losses, optimizer_of, shares

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

ARRAYS = load_npz("j_classifier.npz")
CLASSIFIERS = {case["name"]: case for case in GOLDEN["classifiers"]}
KEPT_ALONE = [name for name, case in CLASSIFIERS.items() if case["replicas"] == 1]


@pytest.fixture(autouse=True)
def alone():
    """What one test has trained, the next does not go on with."""
    with SingleStrategy().scope():
        yield


def classifier(case):
    """The model that `architecture` describes, for example ``dense6 relu, batchnorm, dense``; its weights say
    how wide it is.
    """
    before = classifier_weights(case)
    widths = [
        array.shape[-1] for name, array in zip(case["weights"], before, strict=True) if name.endswith("_bias")
    ]
    layers = [dt.layers.Input(ARRAYS[f"{case['name']}/x"].shape[1:])]
    for description in case["architecture"].split(", "):
        kind, *activation = description.split()
        if kind == "batchnorm":
            layers.append(dt.layers.BatchNormalization())
        else:
            assert kind.startswith("dense"), case["architecture"]
            layers.append(dt.layers.Dense(widths.pop(0), activation=next(iter(activation), None)))
    model = dt.Sequential(layers)
    model.compile(
        optimizer=optimizer_of(case),
        loss=dt.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.set_weights([expected[0] for expected in before])
    return model


def classifier_weights(case):
    """For every variable its values before and after each step."""
    return [ARRAYS[f"{case['name']}/weights/{weight}"] for weight in case["weights"]]


def classifier_steps(case):
    """Every batch cut into blocks of equal size, the last smaller, one a replica.

    TensorFlow divided the sum over all examples by the global batch size, also where a batch is smaller:
    hence the weights.
    """
    x, y = (ARRAYS[f"{case['name']}/{what}"] for what in "xy")
    batches = [
        slice(start, start + case["global_batch"])
        for start in range(0, case["examples"], case["global_batch"])
    ]
    for batch in islice(cycle(batches), case["steps"]):
        block = -(-len(x[batch]) // case["replicas"])
        blocks = [slice(i * block, (i + 1) * block) for i in range(case["replicas"])]
        yield [(x[batch][own], y[batch][own], shares(case, len(x[batch][own]))) for own in blocks]


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
    note = dt.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(model.get_weights())
    )
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
    from conformance.test_classifiers_golden import CLASSIFIERS, classifier, classifier_steps

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


def largest_of_each_architecture():
    """For each architecture a classifier of the most replicas."""
    cases = [case for case in CLASSIFIERS.values() if case["replicas"] > 1]
    return {
        case["architecture"]: case["name"] for case in sorted(cases, key=lambda case: case["replicas"])
    }.values()


@pytest.mark.parametrize("name", largest_of_each_architecture())
def test_a_classifier_on_a_cluster(launcher, name, monkeypatch):
    case = CLASSIFIERS[name]
    exact = ["training.deterministic=true", "training.updates=sync"]
    cluster_of(launcher, monkeypatch, CLASSIFIER_PROGRAM, name, case["replicas"], 2, exact)
    found = list(np.load(launcher.folder / "weights.npz").values())
    model = classifier(case)
    *_, expected = train_as_one(model, classifier_steps(case))
    assert json.dumps([array.tolist() for array in found]) == json.dumps(
        [array.tolist() for array in expected]
    ), "bit for bit"
    agree_in_the_end(case, model, found)
