"""Batches by number, in whatever order a session deals them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset
from dtrain.training.batches import Batches


def batches_of(addressable, n=7):
    source = Dataset.range(n) if addressable else Dataset.from_generator(lambda: range(n))
    return Batches(source.shuffle(4, seed=3).batch(2))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 20), max_size=12), st.booleans())
def test_every_number_is_the_same_batch_in_any_order(numbers, addressable):
    in_order = batches_of(addressable).stream(1)
    whole = [in_order.at(number).x.tolist() for number in range(21)]
    stream = batches_of(addressable).stream(3)
    assert [stream.at(number).x.tolist() for number in numbers] == [whole[number] for number in numbers]


def test_two_walks_through_a_pipeline_that_must_be_read_from_the_start_read_it_twice():
    read = []
    dataset = Dataset.from_generator(lambda: iter(range(40))).map(lambda x: read.append(int(x)) or x).batch(1)
    stream = Batches(dataset).stream(1)
    read.clear()
    for number in range(20):
        stream.at(20 + number)
        stream.at(number)
        stream.at(number)
    assert len(read) <= 40 + 20 + 2


def test_other_replicas_batches_are_not_computed():
    computed = []
    dataset = Dataset.range(12).batch(2).map(lambda x: computed.append(int(x[0])) or x)
    stream = Batches(dataset).stream(3)
    computed.clear()
    assert [stream.at(number).x.tolist() for number in (1, 4)] == [[2, 3], [8, 9]]
    assert computed == [2, 8]


@pytest.mark.parametrize(("first", "expected"), [(0, [0, 1, 2]), (7, [2, 3, 4])])
def test_a_replicas_own_data_come_in_order_whatever_the_numbers(first, expected):
    stream = Batches(Dataset.range(100).batch(1), own=True).stream(3)
    assert [int(stream.at(number).x[0]) for number in (first, first + 9, first + 3)] == expected
