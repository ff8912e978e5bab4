"""What workers and replicas get of a dataset, over all of them: properties of every policy."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset, InputContext
from dtrain.data.autosharding import autoshard, distributed, steps_by_policy
from dtrain.data.experimental import AutoShardPolicy
from dtrain.data.readers.rows import FileRows, TextLines
from dtrain.data.sharding import WorkerShare, batch_sizes_for_worker
from dtrain.errors import InputError, InvalidArgumentError

WORKERS, REPLICAS = st.integers(1, 4), st.integers(1, 3)


def shares(dataset, workers, replicas, policy):
    """The batches that each worker reads."""
    contexts = [InputContext(workers, worker, workers * replicas) for worker in range(workers)]
    nodes = [distributed(dataset.node, each, policy) for each in contexts]
    return [[batch.tolist() for batch in Dataset(node)] for node in nodes]


def examples(batches):
    return [x for batch in batches for x in batch]


@settings(deadline=None, max_examples=48)
@given(st.integers(0, 30), st.integers(1, 8), WORKERS, REPLICAS, st.booleans())
def test_dealt_by_batches_every_example_has_one_replica_and_a_step_is_a_batch(
    count, size, workers, replicas, mapped
):
    dataset = Dataset.range(count).batch(size)
    dataset = dataset.map(lambda x: x) if mapped else dataset
    found = shares(dataset, workers, replicas, AutoShardPolicy.DATA)
    if workers * replicas == 1:
        assert found == [[batch.tolist() for batch in dataset]]
        return
    assert len({len(batches) for batches in found}) == 1, "all workers have equally many batches"
    for step, batch in enumerate(dataset):
        of_step = [batches[step * replicas : (step + 1) * replicas] for batches in found]
        assert sorted(examples(examples(of_step))) == batch.tolist()
        sizes = [len(each) for of_worker in of_step for each in of_worker]
        assert max(sizes) == -(-len(batch) // (workers * replicas))


@settings(deadline=None, max_examples=48)
@given(st.integers(0, 30), st.integers(1, 8), WORKERS, REPLICAS)
def test_without_dealing_every_worker_reads_all_in_order(count, size, workers, replicas):
    dataset = Dataset.range(count).batch(size)
    for batches in shares(dataset, workers, replicas, AutoShardPolicy.OFF):
        assert examples(batches) == list(range(count))


@given(st.integers(1, 50), WORKERS, REPLICAS)
def test_the_sizes_of_a_worker_add_up_and_so_do_those_of_a_step(size, workers, replicas):
    total = workers * replicas
    sizes = [batch_sizes_for_worker(size, workers, replicas, worker) for worker in range(workers)]
    for of_worker in sizes:
        assert (len(of_worker), sum(of_worker)) == (total, size)
        assert max(of_worker) - min(of_worker) <= 1
    for step in range(workers):
        of_step = [each for of in sizes for each in of[step * replicas : (step + 1) * replicas]]
        assert sum(of_step) == size


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_dealt_by_files_every_file_has_one_worker(lengths, size, workers, shuffled, interleaved):
    """Files stand in memory here: a reader is what a function over their names returns."""
    contents = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    names = Dataset.range(len(lengths))
    names = names.shuffle(10, seed=1) if shuffled else names

    def read(number):
        return Dataset(InMemory(contents[int(number)]))

    rows = names.interleave(read, cycle_length=2 if interleaved else 1).batch(size)
    if workers > len(lengths):
        return
    found = [sorted(examples(each)) for each in shares(rows, workers, 1, AutoShardPolicy.FILE)]
    assert sorted(examples(found)) == list(range(sum(lengths)))
    for number, numbers in enumerate(contents):
        if len(numbers):
            assert found[number % workers].count(numbers[0]) == 1


class InMemory(FileRows):
    """A reader of a file, whose rows stand in memory."""

    def __init__(self, rows):
        super().__init__("", TextLines())
        self.rows = rows

    def iterate(self, iteration):
        return iter(self.rows)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 6), WORKERS, REPLICAS, st.sampled_from(list(AutoShardPolicy)))
def test_the_steps_of_a_policy_are_those_of_the_shares_and_their_number_is_known(
    count, size, workers, replicas, policy
):
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT) or workers * replicas == 1:
        return
    dataset = Dataset.range(count).batch(size)
    steps = steps_by_policy(dataset.node, policy, workers, workers * replicas)
    found = list(steps.iterate((0,)))
    assert steps.cardinality == len(found)
    expected = shares(dataset, workers, replicas, policy)
    for step, batches in enumerate(found):
        assert len(batches) == workers * replicas
        of_step = [each for of in expected for each in islice(of, step * replicas, (step + 1) * replicas)]
        assert [each.tolist() for each in batches if each is not None] == [each for each in of_step if each]


def test_a_worker_computes_only_its_own_rows_of_what_is_addressable():
    computed = []
    dataset = Dataset.range(12).map(lambda x: computed.append(int(x)) or x).batch(6)
    node = distributed(dataset.node, InputContext(3, 1, 3), AutoShardPolicy.DATA)
    computed.clear()
    assert [batch.tolist() for batch in Dataset(node)] == [[2, 3], [8, 9]]
    assert computed == [2, 3, 8, 9]
    short = distributed(Dataset.range(3).batch(6).node, InputContext(4, 3, 4), AutoShardPolicy.DATA)
    [empty] = Dataset(short)
    assert (empty.shape, empty.dtype) == ((0,), np.int64)


def test_a_worker_without_a_batch_sees_none_and_the_others_an_error_wherever_they_read():
    batches = Dataset.range(4).batch(2)
    for index, expected in ((0, None), (1, None), (2, [])):
        for source in (batches, batches.filter(lambda x: True), batches.map(lambda x: x)):
            node = autoshard(source.node, 3, index, AutoShardPolicy.DATA)
            if expected is None:
                with pytest.raises(InvalidArgumentError, match=r"workers \(3\), found 2"):
                    next(iter(Dataset(node)))
            else:
                assert list(Dataset(node)) == expected
    dealt = WorkerShare(batches.node, 3, 0)
    with pytest.raises(InvalidArgumentError):
        dealt.elements(range(1), (0,))
    with pytest.raises(InvalidArgumentError):
        dealt.part(0, (0,), range)
    enough = WorkerShare(batches.node, 2, 1)
    assert enough.part(0, (0,), lambda size: range(1, size))[0].tolist() == [3]
    assert enough.elements(range(1), (0,)).tolist() == [[2, 3]]


def test_workers_with_different_numbers_of_replicas_are_refused():
    with pytest.raises(InputError, match="equally many replicas in every worker, found 3 replicas in 2"):
        distributed(Dataset.range(8).batch(4).node, InputContext(2, 0, 3), AutoShardPolicy.DATA)
