"""Rows of batches by number: unbatch and rebatch are what reading from the front gives, where they can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset, TextLineDataset
from dtrain.data.record_index.addressing import addressed, obstacles

STEPS = {
    "nothing": lambda batches: batches,
    "prefetch": lambda batches: batches.prefetch(2),
    "shuffle": lambda batches: batches.shuffle(3, seed=5),
    "repeat": lambda batches: batches.repeat(2),
    "take": lambda batches: batches.take(2),
    "skip": lambda batches: batches.skip(1),
}


def rows(node, by_number):
    order = (
        range(node.cardinality)
        if by_number is None
        else by_number.sample(range(node.cardinality), node.cardinality)
    )
    found = dict(zip(order, node.each(np.array(order, np.int64), (0,)), strict=True))
    return [np.asarray(found[number]).tolist() for number in sorted(found)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 30),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(sorted(STEPS)),
    st.one_of(st.none(), st.lists(st.integers(0, 6), min_size=1, max_size=3).filter(any)),
    st.booleans(),
    st.randoms(),
)
def test_rows_by_number_are_those_read_from_the_front(count, size, drop, step, sizes, drop_last, random):
    batches = STEPS[step](Dataset.range(count).batch(size, drop_remainder=drop))
    cut = batches.unbatch() if sizes is None else batches.rebatch(sizes, drop_remainder=drop_last)
    expected = [np.asarray(each).tolist() for each in cut.node.iterate((0,))]
    full = drop or count % size == 0
    if batches.cardinality():
        assert cut.node.addressable is (step == "nothing" or full)
    if cut.node.addressable:
        assert cut.node.cardinality == len(expected)
        assert rows(cut.node, random) == expected


def test_rows_of_files_are_computed_alone(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(100)))
    parsed = []

    def parse(line):
        parsed.append(int(line))
        return np.int64(int(line))

    dataset = TextLineDataset(str(path)).map(parse).batch(10).unbatch().shuffle(100, seed=2).batch(4)
    expected = [each.tolist() for each in dataset]
    assert not obstacles(dataset.node)
    node = addressed(dataset.node)
    parsed.clear()
    assert node.element(20, (0,)).tolist() == expected[20]
    assert sorted(parsed) == sorted(expected[20])


@pytest.mark.parametrize("cut", [Dataset.unbatch, lambda dataset: dataset.rebatch(3)])
def test_batches_of_unknown_size_are_said_to_be_read_from_the_front(cut):
    generated = Dataset.from_generator(lambda: iter([np.zeros(2), np.zeros(3)]))
    mapped = Dataset.range(9).batch(2).map(lambda batch: batch[batch > 3])
    for dataset in (cut(mapped), cut(generated)):
        assert any("may change how many rows a batch has" in each for each in obstacles(dataset.node))
        assert not addressed(dataset.node).addressable
