"""Batch k goes to replica k mod T, and to nobody else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset, InputContext
from dtrain.data.dealing import as_dataset, deal
from dtrain.errors import InputError


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 5))
def test_every_batch_is_dealt_once(n, batch_size, replicas, addressable, iteration):
    source = Dataset.range(n) if addressable else Dataset.from_generator(lambda: range(n))
    dataset = source.shuffle(7, seed=3).batch(batch_size)
    whole = [batch.tolist() for batch in deal(dataset, 0, 1, iteration=iteration)]
    assert sorted(number for batch in whole for number in batch) == list(range(n))
    for rank in range(replicas):
        dealt = deal(dataset, rank, replicas, iteration=iteration)
        assert [batch.tolist() for batch in dealt] == whole[rank::replicas]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 12), st.booleans())
def test_dealing_goes_on_from_a_state(taken, addressable):
    source = Dataset.range(5) if addressable else Dataset.from_generator(lambda: range(5))
    dataset = source.shuffle(5).repeat().batch(2)
    iterator = deal(dataset, 1, 3)
    for _ in range(taken):
        next(iterator)
    continued = deal(dataset, 1, 3, state=iterator.state())
    assert [next(continued).tolist() for _ in range(4)] == [next(iterator).tolist() for _ in range(4)]


def test_other_replicas_batches_are_not_computed():
    computed = []
    dataset = Dataset.range(12).batch(2).map(lambda x: computed.append(x[0]) or x)
    assert [batch.tolist() for batch in deal(dataset, 1, 3)] == [[2, 3], [8, 9]]
    assert computed == [2, 8]


def test_arrays_become_batches():
    x, y = np.arange(10), np.arange(10) * 2
    batches = list(as_dataset((x, y), batch_size=4))
    assert [len(a) for a, _ in batches] == [4, 4, 2]
    shuffled = as_dataset((x, y), batch_size=10, shuffle=True, seed=5)
    (a, b), (c, _) = next(iter(shuffled)), next(iter(shuffled))
    assert not np.array_equal(a, x)
    assert not np.array_equal(a, c)
    np.testing.assert_array_equal(b, a * 2)


def test_lists_of_arrays_are_several_inputs():
    a, b, y = np.zeros((4, 2)), np.ones(4), np.arange(4)
    (one, two), labels = next(iter(as_dataset(([a, b], y), batch_size=3)))
    assert (one.shape, two.shape, labels.tolist()) == ((3, 2), (3,), [0, 1, 2])
    assert [part.shape for part in next(iter(as_dataset([a, b], batch_size=3)))[0]] == [(3, 2), (3,)]
    assert next(iter(as_dataset(([1, 2, 3], [4, 5, 6]), batch_size=2)))[0].tolist() == [1, 2]


def test_functions_and_datasets_are_taken_as_they_are():
    dataset = Dataset.range(3)
    assert as_dataset(dataset) is dataset
    context = InputContext(2, 1, 2)
    made = as_dataset(lambda c: Dataset.range(c.num_input_pipelines), context=context)
    assert len(made) == 2
    with pytest.raises(InputError, match=r"return a dtrain\.data\.Dataset"):
        as_dataset(lambda c: [1, 2])
    with pytest.raises(InputError, match="rank 2 of 2"):
        deal(dataset, 2, 2)
