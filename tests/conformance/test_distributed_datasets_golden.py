"""Distributed datasets give replicas TensorFlow's batches: golden files a and b2."""

import json

import pytest
from conformance.golden import load_json
from conformance.pipelines import pipeline, plain
from conformance.test_autoshard_golden import class_of
from conformance.workers_in_threads import on_workers
from row_by_row import every_row
from strategies.shipped import mirrored

from dtrain.data.experimental import Optional

REPLICAS = load_json("a_rebatch.json")["cases"]
WORKERS = [case for cluster in load_json("b2_multiworker.json")["clusters"] for case in cluster["cases"]]
CONTEXT = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")


def number(case):
    return json.dumps(
        {key: case[key] for key in case if key not in ("steps", "global_steps", "input_context")}
    )


def distributed(strategy, case, folder, contexts):
    """The dataset of a case; a function notes the contexts that it gets."""
    if case["kind"] == "distribute_dataset":
        dataset = pipeline(case["pipeline"], folder, case["policy"])
        return strategy.experimental_distribute_dataset(dataset)

    def function(context):
        contexts.append([getattr(context, name) for name in CONTEXT])
        steps = case["pipeline"]
        if case.get("shard"):
            share = ["shard", context.num_input_pipelines, context.input_pipeline_id]
            steps = [steps[0], share, *steps[1:]]
        return pipeline(steps, folder)

    return strategy.distribute_datasets_from_function(function)


def local(strategy, batch):
    return plain(strategy.experimental_local_results(batch))


@every_row("case", REPLICAS, ids=number)
def test_batches_of_replicas(case, tmp_path):
    strategy, contexts = mirrored(case["replicas"]), []
    if "error" in case:
        with pytest.raises(class_of(case["error"])):
            list(distributed(strategy, case, tmp_path, contexts))
        return
    dataset = distributed(strategy, case, tmp_path, contexts)
    assert [local(strategy, batch) for batch in dataset] == case["steps"]
    if "input_context" in case:
        assert contexts == [[case["input_context"][name] for name in CONTEXT]]


WITH_PARTIAL_STEPS = [
    case
    for case in REPLICAS
    if "steps" in case and not (case["kind"] == "from_function" and case["pipeline"][-1][-1] is True)
]
"""Where all batches of a function are full `next` leaves a last step out that an optional has."""


@every_row("case", WITH_PARTIAL_STEPS, ids=number)
def test_optionals_hold_the_same_batches(case, tmp_path):
    strategy = mirrored(case["replicas"])
    iterator = iter(distributed(strategy, case, tmp_path, []))
    steps = []
    while (optional := iterator.get_next_as_optional()).has_value():
        steps.append(local(strategy, optional.get_value()))
    assert steps == case["steps"]
    assert isinstance(optional, Optional)


@every_row("case", WORKERS, ids=number)
def test_batches_of_workers(case, tmp_path):
    contexts = []

    def program(strategy):
        dataset = distributed(strategy, case, tmp_path / f"{strategy.loops.first}", contexts)
        return [local(strategy, batch) for batch in dataset]

    of_workers = on_workers(case["workers"], program)
    steps = [[batch for [batch] in step] for step in zip(*of_workers, strict=True)]
    assert steps == case["global_steps"]
    assert sorted(contexts) == case.get("input_contexts", [])
