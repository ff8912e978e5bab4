"""Pipelines against a dumb twin: the same operations on lists."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.data import INFINITE, UNKNOWN, Dataset, DatasetIterator, TensorSpec
from dtrain.errors import InputError

STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 12)),
    st.tuples(st.just("skip"), st.integers(0, 5)),
    st.tuples(st.just("repeat"), st.integers(0, 3)),
    st.tuples(st.just("shard"), st.integers(1, 3), st.integers(0, 0)),
    st.tuples(st.just("map"), st.just(lambda x: x * 10)),
    st.tuples(st.just("filter"), st.just(lambda x: np.sum(x) % 3 != 0)),
    st.tuples(st.just("cache")),
    st.tuples(st.just("prefetch"), st.just(1)),
    st.tuples(st.just("concatenate"), st.just(Dataset.range(100, 103))),
    st.tuples(st.just("batch"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("shuffle"), st.integers(1, 12), st.integers(0, 9)),
)


def plain(element):
    return np.asarray(element).tolist()


def twin(elements, step):
    """What a step makes of a list; a shuffle is not known in advance."""
    name, *arguments = step
    if name == "batch":
        size, drop = arguments
        groups = [elements[i : i + size] for i in range(0, len(elements), size)]
        return [group for group in groups if len(group) == size or not drop]
    return {
        "take": lambda: elements[: arguments[0]],
        "skip": lambda: elements[arguments[0] :],
        "repeat": lambda: elements * arguments[0],
        "shard": lambda: elements[arguments[1] :: arguments[0]],
        "map": lambda: [plain(arguments[0](np.asarray(x))) for x in elements],
        "filter": lambda: [x for x in elements if arguments[0](np.asarray(x))],
        "concatenate": lambda: elements + [plain(x) for x in arguments[0]],
    }.get(name, lambda: elements)()


@st.composite
def pipelines(draw, shuffle=True):
    """Steps in which batches come last, once."""
    steps = draw(st.lists(STEPS, max_size=5))
    steps = [step for step in steps if step[0] != "batch" and (shuffle or step[0] != "shuffle")]
    return steps + draw(st.lists(STEPS.filter(lambda step: step[0] == "batch"), max_size=1))


def build(dataset, steps):
    for name, *arguments in steps:
        dataset = getattr(dataset, name)(*arguments)
    return dataset


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 12), pipelines(shuffle=False))
def test_pipelines_do_what_lists_do(n, steps):
    expected = list(range(n))
    for step in steps:
        expected = twin(expected, step)
    dataset = build(Dataset.range(n), steps)
    assert [plain(x) for x in dataset] == expected
    assert dataset.cardinality() in (len(expected), UNKNOWN)
    streamed = build(Dataset.from_generator(lambda: range(n)), steps)
    assert [plain(x) for x in streamed] == expected


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), pipelines())
def test_reading_in_order_and_by_index_and_from_any_position_agree(n, steps):
    def fresh():
        return build(Dataset.range(n), steps)

    streamed = [plain(x) for x in build(Dataset.from_generator(lambda: range(n)), steps)]
    whole = [plain(x) for x in fresh()]
    assert whole == streamed
    for position in range(0, len(whole) + 1, 3):
        iterator = DatasetIterator(fresh().node, (0,), position)
        assert iterator.state() == {"iteration": 0, "position": position}
        assert [plain(x) for x in iterator] == whole[position:]


def dealt(dataset):
    return dataset.batch(3).shuffle(4, seed=2).skip(1).take(3).repeat(2)


@pytest.mark.parametrize("rows", [range(2), range(1, 3), range(3, 3)])
def test_rows_of_an_element_are_those_of_the_whole_element(rows):
    node = dealt(Dataset.range(14)).node
    for index in range(6):
        element = node.element(index, (0,))
        part, size = node.part(index, (0,), lambda size: range(rows.start, min(rows.stop, size)))
        assert size == len(element)
        assert (part is None) == (not rows)
        if rows:
            assert part.tolist() == element[rows.start : rows.stop].tolist()


@pytest.mark.parametrize("buffer_size", [1, 3, 10, 50])
def test_shuffles_are_permutations_that_change_with_iteration_and_seed(buffer_size):
    dataset = Dataset.range(10).shuffle(buffer_size, seed=4)
    first, second = list(dataset), list(dataset)
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(Dataset.range(10).shuffle(buffer_size, seed=4)) == first
    assert all(value < index + buffer_size for index, value in enumerate(first))
    assert (first != second) == (buffer_size > 1)
    still = Dataset.range(10).shuffle(buffer_size, seed=4, reshuffle_each_iteration=False)
    assert list(still) == list(still)


def test_every_pass_of_a_repeat_is_shuffled_anew():
    passes = np.array(list(Dataset.range(20).shuffle(20, seed=1).repeat(3))).reshape(3, 20)
    assert len({tuple(each) for each in passes}) == 3
    assert all(sorted(each) == list(range(20)) for each in passes)


def test_a_pipeline_without_end_is_read_by_number_also_in_the_passes_that_fit_adds():
    endless = Dataset.range(10).shuffle(10, seed=1).repeat().batch(3)
    again = endless.repeat()
    first = [plain(x) for x in islice(again, 9)]
    assert first == [plain(x) for x in islice(endless.repeat(1), 9)]
    assert again.node.addressable
    root = (0,)
    assert [plain(again.node.element(number, root)) for number in range(9)] == first
    assert [plain(x) for x in again.node.each([2, 7], root)] == [first[2], first[7]]
    assert plain(again.node.elements(range(4, 6), root)) == first[4:6]


def test_batches_run_across_passes_where_repeat_comes_first():
    assert [plain(x) for x in Dataset.range(3).repeat(3).batch(4)] == [[0, 1, 2, 0], [1, 2, 0, 1], [2]]
    assert [plain(x) for x in Dataset.range(3).batch(2).repeat(2)] == [[0, 1], [2], [0, 1], [2]]
    assert [plain(x) for x in islice(Dataset.range(2).repeat().batch(5), 2)] == [
        [0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_structures():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    dataset = Dataset.from_tensor_slices({"x": x, "both": (x, y)}).batch(4)
    last = list(dataset)[-1]
    np.testing.assert_array_equal(last["both"][0], x[4:])
    assert dataset.element_spec["both"] == (TensorSpec((None, 2), "float64"), TensorSpec((None,), "int64"))
    total = (
        Dataset.from_tensor_slices((x, y))
        .map(lambda a, b: (a.sum() + b, b))
        .reduce(0.0, lambda s, e: s + e[0])
    )
    assert total == x.sum() + y.sum()


def test_bytes_keep_their_zeros():
    dataset = Dataset.from_tensor_slices([b"a\0", b"", "text"]).batch(2)
    assert [list(batch) for batch in dataset] == [[b"a\0", b""], ["text"]]
    assert next(iter(Dataset.from_generator(lambda: [b"a\0"]).batch(1))).tolist() == [b"a\0"]


def test_a_signature_sets_the_dtypes_of_a_generator():
    signature = (TensorSpec([2], np.float32), TensorSpec((), "string"))
    dataset = Dataset.from_generator(lambda: [([1, 2], b"x")], output_signature=signature)
    ((numbers, text),) = dataset
    assert (numbers.dtype, text) == ("float32", b"x")
    assert dataset.batch(1).element_spec == (TensorSpec((None, 2), "float32"), TensorSpec((None,), "string"))
    assert Dataset.from_generator(lambda: [1]).element_spec == TensorSpec((), "int64")
    assert Dataset.range(3).map(lambda x: x / 2).element_spec == TensorSpec((), "float64")


def test_zip_enumerate_unbatch_rebatch():
    assert [(plain(a), plain(b)) for a, b in Dataset.zip((Dataset.range(3), Dataset.range(5, 99)))] == [
        (0, 5),
        (1, 6),
        (2, 7),
    ]
    two = Dataset.range(2), Dataset.range(5, 99)
    for zipped in (Dataset.zip(*two), Dataset.zip(datasets=two)):
        assert [(plain(a), plain(b)) for a, b in zipped] == [(0, 5), (1, 6)]
    for wrong in (
        lambda: Dataset.zip(),
        lambda: Dataset.zip(two, datasets=two),
        lambda: Dataset.zip(two[0], 3),
    ):
        with pytest.raises(InputError, match="zip: expected datasets"):
            wrong()
    assert [(int(i), int(x)) for i, x in Dataset.range(7, 9).enumerate(start=1)] == [(1, 7), (2, 8)]
    batches = Dataset.range(7).batch(3)
    assert list(batches.unbatch()) == list(range(7))
    assert [plain(x) for x in batches.rebatch([2, 1])] == [[0, 1], [2], [3, 4], [5], [6]]
    assert [plain(x) for x in batches.rebatch(4, drop_remainder=True)] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("cycle", "block", "expected"),
    [
        (1, 1, [10, 20, 21, 30, 31, 32]),
        (2, 1, [10, 20, 21, 30, 31, 32]),
        (3, 1, [10, 20, 30, 21, 31, 32]),
        (2, 2, [10, 20, 21, 30, 31, 32]),
    ],
)
def test_interleave(cycle, block, expected):
    dataset = Dataset.range(1, 4).interleave(lambda n: Dataset.range(10 * n, 10 * n + n), cycle, block)
    assert list(dataset) == expected


def test_cache_computes_once_and_keeps_the_first_order():
    calls = []
    dataset = Dataset.range(4).shuffle(4).map(lambda x: calls.append(int(x)) or x).cache()
    assert list(dataset) == list(dataset)
    assert sorted(calls) == [0, 1, 2, 3]


def test_cardinalities():
    n = Dataset.range(7)
    assert n.repeat().cardinality() == n.repeat().batch(2).cardinality() == INFINITE
    assert n.filter(bool).cardinality() == Dataset.from_generator(list).cardinality() == UNKNOWN
    assert n.repeat().batch(2).rebatch(3).cardinality() == INFINITE
    assert n.batch(2).rebatch(3).cardinality() == 3
    assert n.filter(bool).batch(2).rebatch(3).cardinality() == UNKNOWN
    assert n.repeat().take(3).cardinality() == len(n.batch(3)) == 3
    assert n.take(0).repeat().cardinality() == 0
    assert list(n.take(0).repeat()) == []
    with pytest.raises(TypeError, match="infinite"):
        len(n.repeat())


def test_the_spec_of_a_rebatched_stream_has_its_kind_and_its_length_where_that_is_sure():
    batches = Dataset.from_tensor_slices(np.zeros((6, 2), np.float32)).batch(2)
    found = [batches.rebatch(3, drop_remainder=drop).element_spec for drop in (True, False)]
    assert [(spec.shape, np.dtype(spec.dtype)) for spec in found] == [
        ((3, 2), np.float32),
        ((None, 2), np.float32),
    ]


@every_row(
    "build, message",
    [
        (lambda: Dataset.from_tensor_slices((np.zeros(2), np.zeros(3))), "one length"),
        (lambda: Dataset.from_tensor_slices(3), "one length"),
        (lambda: Dataset.range(3).batch(0), ">= 1 as size"),
        (lambda: Dataset.range(3).shuffle(0), "buffer_size >= 1"),
        (lambda: Dataset.range(3).shard(2, 2), "index < num_shards"),
        (lambda: Dataset.range(3).batch(2).rebatch(0), "sizes"),
        (lambda: list(Dataset.from_generator(lambda: [[1], [1, 2]]).batch(2)), "one shape"),
        (lambda: list(Dataset.range(2).map(print)), "found None"),
        (lambda: Dataset.range(0).map(abs).element_spec, "there is none"),
    ],
)
def test_mistakes_are_named(build, message):
    with pytest.raises(InputError, match=message):
        build()
