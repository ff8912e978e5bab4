"""The parts of steps that `fit` makes where a dataset names a policy: those of a distributed dataset."""

from types import SimpleNamespace

import numpy as np
import pytest
from conformance.workers_in_threads import on_workers
from hypothesis import given
from hypothesis import strategies as st
from strategies.shipped import mirrored

from dtrain.data import Dataset, Options, TextLineDataset
from dtrain.data.experimental import AutoShardPolicy
from dtrain.data.input_context import InputContext
from dtrain.errors import InputError
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.replicas.distributed_dataset import InputWorkers
from dtrain.training.batches import Batches, BatchesOfReplicas


def by_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def of_workers(workers, replicas):
    """A strategy as far as batches look at it."""
    place = InputWorkers(workers, 0, replicas)
    return SimpleNamespace(input_workers=place, num_replicas_in_sync=workers * replicas)


def parts_of(batches, parts, steps):
    """The examples of every part, step by step."""
    [stream] = batches.streams([0], BatchCut(parts))
    found = [[stream.at(step * parts + part) for part in range(parts)] for step in range(steps)]
    for step in found:
        sizes = [0 if part.batch is None else part.batch.size for part in step]
        empty = sizes.count(0)
        assert sizes[len(sizes) - empty :] == [0] * empty, "parts without examples come last"
        assert {(part.empty, part.parts) for part in step} == {(empty, parts)}
        assert {part.batch_size for part in step if part.batch is not None} == {sum(sizes)}
    return [[part.batch.x.tolist() for part in step if part.batch is not None] for step in found]


def numbers(tmp_path, lengths):
    """A dataset of numbers in files of these lengths."""
    start = 0
    for number, length in enumerate(lengths):
        text = "".join(f"{row}\n" for row in range(start, start + length))
        (tmp_path / f"{number}.txt").write_text(text)
        start += length
    names = [str(tmp_path / f"{number}.txt") for number in range(len(lengths))]
    return TextLineDataset(names).map(lambda line: np.int64(int(line)))


@pytest.mark.parametrize("policy", [AutoShardPolicy.FILE, AutoShardPolicy.DATA, AutoShardPolicy.OFF])
def test_a_pass_of_several_workers_is_one_of_their_distributed_datasets(policy, tmp_path):
    dataset = by_policy(numbers(tmp_path, [2, 6, 1]).batch(5), policy)

    def program(strategy):
        batches = strategy.experimental_distribute_dataset(dataset)
        return [batch.values[0].tolist() for batch in batches]

    expected = [[each for each in step if each] for step in zip(*on_workers(3, program), strict=True)]
    batches = Batches(dataset).for_replicas_of(of_workers(3, 1))
    assert batches.count is None, "the length of files is not known"
    steps = len(expected)
    assert parts_of(batches, 3, 2 * steps) == expected * 2, "pass after pass"


@pytest.mark.parametrize("policy", [AutoShardPolicy.DATA, AutoShardPolicy.OFF])
def test_a_pass_of_threads_is_one_of_their_distributed_dataset_and_its_length_is_known(policy):
    dataset = by_policy(Dataset.range(11).batch(4), policy)
    distributed = mirrored(3).experimental_distribute_dataset(dataset)
    expected = [[each.tolist() for each in batch.values if len(each)] for batch in distributed]
    batches = Batches(dataset).for_replicas_of(of_workers(1, 3))
    assert batches.count == len(expected)
    assert parts_of(batches, 3, batches.count) == expected


def test_a_pass_has_as_many_steps_as_the_dataset_has_batches():
    dataset = by_policy(Dataset.range(8).batch(4), AutoShardPolicy.OFF)
    batches = Batches(dataset).for_replicas_of(of_workers(2, 1))
    assert batches.count == 2, "each worker reads all, half a batch a step"
    assert parts_of(batches, 2, 4) == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]] * 2
    short = by_policy(Dataset.range(5).batch(4).repeat(4), AutoShardPolicy.OFF)
    assert Batches(short).for_replicas_of(of_workers(1, 2)).count == 5, "20 examples in batches of 4"


def test_nothing_changes_without_a_policy_or_for_one_replica_or_on_parameter_servers():
    plain = Batches(Dataset.range(8).batch(4))
    assert plain.for_replicas_of(of_workers(2, 1)) is plain
    off = Batches(by_policy(Dataset.range(8).batch(4), AutoShardPolicy.OFF))
    assert off.for_replicas_of(SimpleNamespace(input_workers=InputWorkers(), num_replicas_in_sync=3)) is off
    data = BatchesOfReplicas(by_policy(Dataset.range(8).batch(4), AutoShardPolicy.OFF))
    uncut = Batches.of(data, batch_size=None, shuffle=False, seed=0)
    assert uncut.for_replicas_of(of_workers(2, 1)) is uncut


def test_a_resumed_run_with_another_number_of_parts_deals_by_that_number():
    dataset = by_policy(Dataset.range(8).batch(4), AutoShardPolicy.OFF)
    batches = Batches(dataset).for_replicas_of(of_workers(1, 2))
    assert parts_of(batches, 4, 2) == [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]


def of_function(made, workers, replicas):
    """The batches of a function that notes the contexts that it is called with."""

    def function(context):
        made.append(context.input_pipeline_id)
        share = Dataset.range(24).shard(context.num_input_pipelines, context.input_pipeline_id)
        return share.batch(context.get_per_replica_batch_size(2 * workers * replicas))

    strategy = of_workers(workers, replicas)
    context = strategy.input_workers.context
    batches = Batches.of(function, batch_size=None, shuffle=False, seed=0, context=context)
    return batches.for_replicas_of(strategy)


def test_replicas_in_threads_get_the_batches_of_one_pipeline_in_turn():
    made = []
    batches = of_function(made, 1, 3)
    assert parts_of(batches, 3, 5)[2:] == [
        [[12, 13], [14, 15], [16, 17]],
        [[18, 19], [20, 21], [22, 23]],
        [[0, 1], [2, 3], [4, 5]],
    ]
    assert batches.count == 12
    assert set(made) == {0}


def test_a_part_of_a_worker_is_read_from_its_pipeline_whoever_computes_it_and_no_other_is_made():
    made = []
    batches = of_function(made, 3, 1)
    [stream] = batches.streams([0], BatchCut(3))
    made.clear()
    own = [stream.at(number).batch.x.tolist() for number in (0, 3, 6)]
    assert own == [[0, 3], [6, 9], [12, 15]]
    assert not made
    assert stream.at(3 + 2).batch.x.tolist() == [8, 11], "the part of a lost worker"
    assert stream.at(6 + 2).batch.x.tolist() == [14, 17]
    assert made == [2]


def uneven(lengths):
    """The batches of a function whose pipelines have so many: pairs of pipeline and place in it."""

    def function(context):
        own = context.input_pipeline_id
        return Dataset.range(lengths[own]).map(lambda place: np.array([own, place])).batch(1)

    context = InputContext(len(lengths), 0, len(lengths))
    return Batches.of(function, batch_size=None, shuffle=False, seed=0, context=context)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(any), st.integers(1, 5))
def test_a_pass_of_pipelines_that_end_at_different_times_has_every_batch_once(lengths, parts):
    batches = uneven(lengths)
    steps = -(-sum(lengths) // parts)
    assert batches.count == sum(lengths)
    expected = sorted([own, place] for own, length in enumerate(lengths) for place in range(length))
    found = parts_of(batches, parts, 2 * steps)
    for of_pass in (found[:steps], found[steps:]):
        assert sorted(row for step in of_pass for part in step for row in part) == expected
        if len(set(lengths)) == 1 and parts == len(lengths):
            assert all([row[0] for [row] in step] == list(range(parts)) for step in of_pass), "each its own"


def test_shapes_are_those_of_another_pipeline_where_the_own_one_is_empty():
    assert uneven([0, 2]).first().x.tolist() == [[1, 0]]
    with pytest.raises(InputError, match="found an empty dataset"):
        uneven([0, 0]).first()


def test_a_distributed_dataset_is_taken_as_what_it_was_made_of():
    dataset = Dataset.range(8).batch(4)
    distributed = mirrored(2).experimental_distribute_dataset(dataset)
    assert Batches.of(distributed, batch_size=None, shuffle=False, seed=0).dataset is dataset
