"""Rebatching and autosharding are TensorFlow's: golden files a (`direct`) and b."""

import builtins
import json

import pytest
from conformance.golden import load_json
from conformance.pipelines import pipeline, plain
from row_by_row import every_row

from dtrain import errors
from dtrain.data import Dataset, InputContext
from dtrain.data.autosharding import autoshard, distributed
from dtrain.data.sharding import SplitBatches, batch_sizes_for_worker, compute_batch_size

DIRECT = load_json("a_rebatch.json")["direct"]
GOLDEN = load_json("b_autoshard.json")


def class_of(error):
    """The exception of a case: Python's own, or dtrain's of the name in tf.errors."""
    name = error["class"]
    return getattr(builtins, name, None) or getattr(errors, name)


def number(case):
    return json.dumps({key: case[key] for key in case if key not in ("batches", "per_worker")})


@every_row("case", DIRECT, ids=number)
def test_rebatch(case, tmp_path):
    dataset = pipeline(case["pipeline"], tmp_path)
    if case["kind"] == "rebatch":
        rebatched = dataset.rebatch(case["batch_sizes"], case["drop_remainder"])
    else:
        rebatched = Dataset(SplitBatches(dataset.node, case["num_replicas"]))
    assert plain(rebatched) == case["batches"]


def steps_of(batches, replicas):
    """What the replicas of one worker get, step by step; missing batches are empty."""
    groups = [batches[i : i + replicas] for i in range(0, len(batches), replicas)]
    return [group + [[]] * (replicas - len(group)) for group in groups]


def share(case, dataset, worker):
    """One worker's pipeline of a case."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    workers = case["workers"]
    if case["kind"] == "autoshard":
        return Dataset(autoshard(dataset.node, workers, worker, policy))
    context = InputContext(workers, worker, workers * case["replicas_per_worker"])
    return Dataset(distributed(dataset.node, context, policy))


@every_row("case", GOLDEN["cases"], ids=number)
def test_shares_of_workers(case, tmp_path):
    assert len(case["per_worker"]) == case["workers"]
    for worker, expected in enumerate(case["per_worker"]):
        dataset = pipeline(case["pipeline"], tmp_path / "files", case["policy"])
        if "error" in expected:
            with pytest.raises(class_of(expected["error"])):
                list(share(case, dataset, worker))
            continue
        batches = plain(share(case, dataset, worker))
        if case["kind"] == "autoshard":
            assert batches == expected["batches"]
        else:
            assert batches == expected["local_batches"]
            assert steps_of(batches, case["replicas_per_worker"]) == expected["steps"]


@every_row("case", GOLDEN["batch_sizes_for_worker"], ids=number)
def test_batch_sizes_of_workers(case):
    arguments = (case[name] for name in ("global_batch_size", "num_workers", "num_replicas_per_worker"))
    arguments = tuple(arguments)
    found = [batch_sizes_for_worker(*arguments, worker) for worker in range(case["num_workers"])]
    assert found == case["per_worker"]


@every_row("case", GOLDEN["compute_batch_size"], ids=number)
def test_batch_size_of_a_pipeline(case, tmp_path):
    node = pipeline(case["pipeline"], tmp_path).node
    if "error" in case:
        with pytest.raises(class_of(case["error"])):
            compute_batch_size(node)
    else:
        assert compute_batch_size(node) == case["batch_size"]
