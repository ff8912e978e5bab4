"""Distributed datasets of a program, as TensorFlow's input guide shows them; on parameter servers; in `fit`."""

import numpy as np
import pytest
from conformance.workers_in_threads import OfThreads, on_workers
from in_memory import InMemoryCluster
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.data import Dataset
from dtrain.data.experimental import AutoShardPolicy
from dtrain.errors import (
    InputError,
    InvalidArgumentError,
    NotADatasetError,
    NotFoundError,
    OutOfRangeError,
)


def plain(batch):
    return [np.asarray(each).tolist() for each in batch.values]


def steps(strategy, dataset):
    return [plain(batch) for batch in strategy.experimental_distribute_dataset(dataset)]


@pytest.mark.parametrize(
    ("replicas", "count", "expected"),
    [
        (2, 6, [[[0, 1], [2, 3]], [[4], [5]]]),
        (5, 4, [[[0], [1], [2], [3], []]]),
        (3, 8, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
        (4, 9, [[[0], [1], [2], [3]], [[4], [5], [6], [7]], [[8], [], [], []]]),
    ],
)
def test_a_global_batch_is_cut_for_the_replicas(replicas, count, expected):
    assert steps(mirrored(replicas), Dataset.range(count).batch(4)) == expected


def with_policy(dataset, policy):
    options = dt.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (AutoShardPolicy.FILE, [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]),
        (AutoShardPolicy.DATA, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]),
        (AutoShardPolicy.OFF, [[[i, i + 1] for i in range(0, 12, 2)]] * 2),
    ],
)
def test_two_workers_read_two_files_of_six(policy, expected, tmp_path):
    for number in range(2):
        rows = range(6 * number, 6 * number + 6)
        (tmp_path / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    names = [str(tmp_path / f"{number}.txt") for number in range(2)]
    numbers = dt.data.TextLineDataset(names).map(lambda line: np.int64(int(line)))
    dataset = with_policy(numbers.batch(4), policy)
    of_workers = on_workers(2, lambda strategy: [batch for [batch] in steps(strategy, dataset)])
    assert of_workers == expected


def test_fewer_files_than_workers_are_an_error_in_the_worker_that_has_one(tmp_path):
    (tmp_path / "only.txt").write_text("0\n1\n")
    dataset = dt.data.TextLineDataset(str(tmp_path / "only.txt")).map(int).batch(2)
    first = OfThreads(1, Workers(2), 0).experimental_distribute_dataset(dataset)
    with pytest.raises(InvalidArgumentError, match=r"at least as many files .* as workers \(2\), found 1"):
        next(iter(first))
    with pytest.raises(NotFoundError, match="reads files, found Range"):
        OfThreads(1, Workers(2), 0).experimental_distribute_dataset(
            with_policy(Dataset.range(4).batch(2), AutoShardPolicy.FILE)
        )


class Workers:
    """So many workers, of whom no one is met."""

    def __init__(self, count):
        self.given = [None] * count


def test_iterators_end_as_tensorflows():
    iterator = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(3).batch(2)))
    assert plain(next(iterator)) == [[0], [1]]
    assert plain(iterator.get_next_as_optional().get_value()) == [[2], []]
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(OutOfRangeError, match="at its end"):
        iterator.get_next()
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(InvalidArgumentError, match="no value"):
        iterator.get_next_as_optional().get_value()


def test_a_plain_dataset_has_the_same_iterators():
    iterator = iter(Dataset.range(2).batch(2))
    assert iterator.element_spec == dt.data.TensorSpec((None,), "int64")
    assert iterator.get_next_as_optional().get_value().tolist() == [0, 1]
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(OutOfRangeError):
        iterator.get_next()


def test_the_spec_has_one_of_each_replica():
    features = Dataset.from_tensor_slices((np.ones((8, 3), np.float32), np.arange(8)))
    spec = mirrored(2).experimental_distribute_dataset(features.batch(4)).element_spec
    assert [each.values for each in spec] == [
        (dt.data.TensorSpec((None, 3), "float32"),) * 2,
        (dt.data.TensorSpec((None,), "int64"),) * 2,
    ]
    one = mirrored(1).experimental_distribute_dataset(features.batch(4))
    assert one.element_spec == features.batch(4).element_spec


def test_the_empty_batch_of_a_replica_has_the_form_of_the_others():
    rows = {"image": np.ones((3, 2, 2), np.uint8), "label": ["a", "b", "c"]}
    dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_tensor_slices(rows).batch(2))
    *_, last = dataset
    assert last["image"].values[1].shape == (0, 2, 2)
    assert last["image"].values[1].dtype == np.uint8
    assert last["label"].values[1].shape == (0,)


def test_a_worker_whose_files_are_empty_gets_empty_batches_of_the_others_form(tmp_path):
    for number, text in enumerate(["1,2\n3,4\n", ""]):
        (tmp_path / f"{number}.csv").write_text(text)
    names = [str(tmp_path / f"{number}.csv") for number in range(2)]
    rows = dt.data.TextLineDataset(names).map(lambda line: np.array(line.split(b","), np.float32))
    found = on_workers(
        2,
        lambda strategy: [
            (batch.values[0].shape, batch.values[0].dtype.name)
            for batch in strategy.experimental_distribute_dataset(rows.batch(2))
        ],
    )
    assert found == [[((1, 2), "float32")] * 2, [((0, 2), "float32")] * 2]


def test_a_shuffled_dataset_has_another_order_in_every_walk_and_the_same_in_all_workers():
    def program(strategy):
        data = Dataset.range(8).shuffle(8, seed=3).batch(4)
        dataset = strategy.experimental_distribute_dataset(data)
        return [[plain(batch)[0] for batch in dataset] for _ in range(2)]

    first, second = on_workers(2, program)
    walks = [sorted(np.concatenate([*a, *b]).tolist()) for a, b in zip(first, second, strict=True)]
    assert walks == [list(range(8))] * 2
    assert first[0] != first[1]


def test_a_function_gets_its_pipeline_and_its_batches_are_taken_as_they_are():
    def program(strategy):
        def function(context):
            share = Dataset.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
            return share.batch(context.get_per_replica_batch_size(4))

        return [plain(batch)[0] for batch in strategy.distribute_datasets_from_function(function)]

    assert on_workers(2, program) == [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]]


def test_the_deprecated_name_says_so():
    with pytest.warns(DeprecationWarning, match="deprecated name"):
        dataset = mirrored(2).experimental_distribute_datasets_from_function(
            lambda context: Dataset.range(2).batch(1)
        )
    assert [plain(batch) for batch in dataset] == [[[0], [1]]]


def test_values_of_a_function_and_of_a_generator():
    strategy = mirrored(4)
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group
    )
    assert strategy.experimental_local_results(numbers) == (0, 1, 2, 3)
    generated = Dataset.from_generator(lambda: iter(range(10)), dt.data.TensorSpec((), "int64"))
    assert steps(strategy, generated.batch(4))[-1] == [[8], [9], [], []]


def test_predictions_are_put_in_order_by_their_numbers():
    strategy = mirrored(4)
    dataset = Dataset.range(24).map(lambda x: x * 2).enumerate().batch(8)
    found = {}
    for batch in strategy.experimental_distribute_dataset(dataset):
        numbers, values = strategy.run(lambda numbers, values: (numbers, values), args=batch)
        for of_replica in zip(numbers.values, values.values, strict=True):
            found.update(zip(*(part.tolist() for part in of_replica), strict=True))
    assert dict(sorted(found.items())) == {number: number * 2 for number in range(24)}


def test_a_lookup_in_the_map_of_a_dataset_on_four_replicas():
    with mirrored(4).scope() as strategy:
        lookup = dt.layers.StringLookup(vocabulary=["a", "b", "c", "d", "f"])
    letters = Dataset.from_tensor_slices(["a", "c", "e"]).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(letters.batch(4).map(lookup)))
    shown = [[each.item() for each in next(iterator).values] for _ in range(3)]
    assert shown == [[1, 3, 0, 1], [3, 0, 1, 3], [0, 1, 3, 0]]


def test_two_workers_agree_only_where_one_may_have_more(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "dtrain.strategies.replicas.distributed_dataset.InputWorkers.total",
        lambda workers, count: calls.append(count) or count,
    )
    known, endless = Dataset.range(8).batch(4), Dataset.range(8).batch(4).repeat()
    unknown = Dataset.range(8).filter(lambda x: True).batch(4)
    for dataset, expected in ((known, []), (endless, []), (unknown, [1, 1, 0])):
        iterator = iter(OfThreads(1, Workers(2), 0).experimental_distribute_dataset(dataset))
        assert sum(1 for _ in zip(range(5), iterator, strict=False)) == (5 if dataset is endless else 2)
        assert calls == expected


def test_datasets_of_other_kinds_are_refused():
    with pytest.raises(NotADatasetError, match="found ndarray; make one by"):
        mirrored(2).experimental_distribute_dataset(np.arange(4))
    strategy = mirrored(2)
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(4).batch(2)))
    with pytest.raises(InputError, match=r"options: expected dt\.distribute\.InputOptions, found int"):
        strategy.experimental_distribute_dataset(Dataset.range(4).batch(2), options=3)
    with pytest.raises(InputError, match="expected a function of an InputContext, found 3"):
        strategy.distribute_datasets_from_function(3)
    with pytest.raises(InputError, match="expected a function of a ValueContext, found 4"):
        strategy.experimental_distribute_values_from_function(4)
    with pytest.raises(ValueError, match=r"strategy.run\(step, args=\(next\(iterator\),\)\)"):
        strategy.run(next, (iterator,))


def test_on_parameter_servers_nothing_is_cut_or_dealt(tmp_path):
    def program(_):
        strategy = dt.get_strategy()
        dataset = strategy.experimental_distribute_dataset(Dataset.range(4).batch(2))
        contexts = []

        def function(context):
            contexts.append((context.num_input_pipelines, context.num_replicas_in_sync))
            return Dataset.range(1).batch(1)

        made = strategy.distribute_datasets_from_function(function)
        return [batch.tolist() for batch in (*dataset, *made)], contexts

    found = InMemoryCluster(tmp_path, 2).run(lambda: None, program)
    assert found == [([[0, 1], [2, 3], [0]], [(1, 1)])] * 2


def test_fit_takes_a_creator_as_the_function_that_it_holds():
    creator = dt.utils.experimental.DatasetCreator(
        lambda context: Dataset.from_tensor_slices(
            (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
        ).batch(context.get_per_replica_batch_size(4)),
        input_options=dt.distribute.InputOptions(),
    )
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    history = model.fit(creator, epochs=1, verbose=0)
    assert len(history.history["loss"]) == 1
    with pytest.raises(ValueError, match="found that it returned list"):
        dt.utils.experimental.DatasetCreator(lambda context: [1])(dt.InputContext())
    with pytest.raises(ValueError, match="found int"):
        dt.utils.experimental.DatasetCreator(5)
