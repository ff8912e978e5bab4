"""Distributed datasets and their iterators behave as TensorFlow's: golden file m5, `misc`."""

import numpy as np
import pytest
from conformance.golden import load_json
from conformance.test_autoshard_golden import class_of
from row_by_row import every_row
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.data import Dataset

GOLDEN = load_json("m5_custom_loops.json")["misc"]
CONTEXT = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")
MODES = dt.distribute.InputReplicationMode


def plain(value):
    """Arrays and replicas as lists, as the golden file has them."""
    if isinstance(value, dt.distribute.DistributedValues):
        return [plain(each) for each in value.values]
    return np.asarray(value).tolist()


def batches(data):
    return [plain(batch) for batch in data]


def shape_and_class(spec):
    """A spec as the golden file has it."""
    return [str(spec.values[0].shape), type(spec).__name__]


def seven(batch):
    return lambda context: Dataset.range(7).batch(batch)


def once_more(strategy):
    dataset = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4))
    iterator = iter(dataset)
    first = [plain(next(iterator)), plain(next(iterator))]
    return [*first, plain(next(iter(dataset)))]


def nested(strategy):
    n = np.arange(5)
    parts = {"a": n, "b": (n * 10, n * 100)}
    rows = Dataset.from_tensor_slices(parts).batch(3)
    elements = strategy.experimental_distribute_dataset(rows)
    return [{"a": plain(each["a"]), "b": plain(each["b"][0]), "c": plain(each["b"][1])} for each in elements]


def vectors(strategy):
    rows = Dataset.from_tensor_slices(np.arange(12).reshape(2, 2, 3))
    return batches(strategy.experimental_distribute_dataset(rows))


def optionals_of_function(strategy):
    iterator = iter(strategy.distribute_datasets_from_function(seven(2)))
    found = []
    while (optional := iterator.get_next_as_optional()).has_value():
        found.append(plain(optional.get_value()))
    return found


def inside_run(strategy):
    made = strategy.run(
        lambda: type(strategy.experimental_distribute_dataset(Dataset.range(4).batch(4))).__name__
    )
    return [made] * strategy.num_replicas_in_sync


def distributed(strategy, count, size, **arguments):
    return strategy.experimental_distribute_dataset(Dataset.range(count).batch(size, **arguments))


def contexts(strategy):
    noted = []

    def function(context):
        noted.append([getattr(context, name) for name in CONTEXT])
        return Dataset.range(7).batch(2)

    options = dt.distribute.InputOptions(experimental_replication_mode=MODES.PER_REPLICA)
    strategy.distribute_datasets_from_function(function, options)
    return noted


def after_per_replica(strategy):
    contexts(strategy)
    return batches(strategy.distribute_datasets_from_function(seven(2)))


def of_plain_dataset(strategy):
    element = next(iter(Dataset.range(4).batch(2)))
    result = strategy.run(lambda batch: batch, args=(element,))
    return [plain(each) for each in strategy.experimental_local_results(result)]


def per_replica_of_dataset(strategy):
    options = dt.distribute.InputOptions(experimental_replication_mode=MODES.PER_REPLICA)
    return strategy.experimental_distribute_dataset(Dataset.range(7).batch(4), options)


def with_options(strategy, case):
    given = dict(case["options"])
    if "experimental_replication_mode" in given:
        given["experimental_replication_mode"] = MODES[given["experimental_replication_mode"]]
    options = dt.distribute.InputOptions(**given)
    if case["what"].startswith("from_function"):
        return batches(strategy.distribute_datasets_from_function(seven(2), options))
    return batches(strategy.experimental_distribute_dataset(Dataset.range(7).batch(4), options))


WHAT = {
    "element_spec of range(7).batch(4)": lambda s: shape_and_class(distributed(s, 7, 4).element_spec),
    "element_spec of range(8).batch(4, drop_remainder=True)": lambda s: shape_and_class(
        iter(distributed(s, 8, 4, drop_remainder=True)).element_spec
    ),
    "type of the distributed dataset and its iterator": lambda s: [
        type(distributed(s, 7, 4)).__name__,
        type(iter(distributed(s, 7, 4))).__name__,
    ],
    "iter, two steps, iter again, one step": once_more,
    "dataset of scalars without batch": lambda s: s.experimental_distribute_dataset(Dataset.range(7)),
    "dataset of vectors [2, 3] without batch": vectors,
    "nested elements {a, (b, c)}": nested,
    "len of a distributed dataset of range(7).batch(4)": lambda s: len(distributed(s, 7, 4)),
    "cardinality": lambda s: distributed(s, 7, 4).cardinality,
    "map on a distributed dataset": lambda s: distributed(s, 7, 4).map(abs),
    "distributing a numpy array": lambda s: s.experimental_distribute_dataset(np.arange(4)),
    "distributing a distributed dataset again": lambda s: s.experimental_distribute_dataset(
        distributed(s, 7, 4)
    ),
    "empty dataset range(0).batch(4)": lambda s: batches(distributed(s, 0, 4)),
    "get_next_as_optional of an empty dataset: has_value": lambda s: (
        iter(distributed(s, 0, 4)).get_next_as_optional().has_value()
    ),
    "experimental_distribute_dataset called inside run": inside_run,
    "iterating inside run": lambda s: s.run(next, args=(iter(distributed(s, 7, 4)),)),
    "next(iterator) of a plain dataset fed to run: every replica gets": of_plain_dataset,
    "distribute_dataset with PER_REPLICA": per_replica_of_dataset,
    "contexts given with PER_REPLICA": contexts,
    "from_function range(7).batch(2) without options, after PER_REPLICA was used once on this strategy": (
        after_per_replica
    ),
    "from_function whose pipelines end unevenly: replicas share one pipeline of batches 2, 2, 2, 1": (
        lambda s: batches(s.distribute_datasets_from_function(seven(2)))
    ),
    "from_function returning a list": lambda s: s.distribute_datasets_from_function(lambda context: [1]),
    "from_function, get_next_as_optional until the end": optionals_of_function,
}


@every_row("case", GOLDEN, ids=lambda case: f"{case['what']} {case.get('options', '')}")
def test_iterators_and_options(case):
    strategy = mirrored(case["replicas"])

    def found():
        return with_options(strategy, case) if "options" in case else WHAT[case["what"]](strategy)

    if "error" in case:
        with pytest.raises(class_of(case["error"])):
            found()
    else:
        assert found() == case["value"]
