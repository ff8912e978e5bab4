"""Groups by key, buckets by length, distinct elements, random numbers, saved datasets: the examples and the rules of
tf.data's reference.
"""

from itertools import islice

import numpy as np
import pytest

import dtrain as dt
from dtrain.data import INFINITE, UNKNOWN, Dataset, TensorSpec
from dtrain.data.iterator import DatasetIterator
from dtrain.data.record_index.addressing import obstacles
from dtrain.errors import InputError, InvalidArgumentError, SpecError

SENTENCES = [[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [13, 14, 15, 16, 19, 20], [21, 22]]


def plain(dataset):
    return [np.asarray(element).tolist() for element in dataset]


def sentences():
    return Dataset.from_generator(lambda: SENTENCES, np.int64, [None])


def buckets(**more):
    settings = {"bucket_boundaries": [3, 5], "bucket_batch_sizes": [2, 2, 2], **more}
    return sentences().bucket_by_sequence_length(len, **settings)


def test_groups_by_window_of_the_reference():
    odd_and_even = Dataset.range(10).group_by_window(
        key_func=lambda x: x % 2, reduce_func=lambda key, window: window.batch(5), window_size=5
    )
    assert plain(odd_and_even) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert odd_and_even.cardinality() == UNKNOWN
    assert odd_and_even.element_spec == TensorSpec((None,), "int64")


def test_windows_that_are_not_full_come_at_the_end_by_their_keys():
    found = Dataset.range(7).group_by_window(
        key_func=lambda x: -(x % 3),
        reduce_func=lambda key, window: Dataset.zip((Dataset.from_tensors(key).repeat(), window.batch(4))),
        window_size_func=lambda key: 2 if key == 0 else 5,
    )
    assert [(int(key), rows.tolist()) for key, rows in found] == [
        (0, [0, 3]), (-2, [2, 5]), (-1, [1, 4]), (0, [6])
    ]  # fmt: skip


def test_groups_of_several_parts_get_them_as_arguments():
    pairs = Dataset.range(4).map(lambda x: (x, x * 10))
    found = pairs.group_by_window(lambda x, y: y // 20, lambda key, window: window.batch(2), 2)
    assert [(x.tolist(), y.tolist()) for x, y in found] == [([0, 1], [0, 10]), ([2, 3], [20, 30])]


def test_a_window_needs_exactly_one_size():
    for sizes in ({}, {"window_size": 2, "window_size_func": lambda key: 2}):
        with pytest.raises(InputError, match="either window_size or window_size_func"):
            Dataset.range(3).group_by_window(lambda x: 0, lambda key, window: window, **sizes)
    with pytest.raises(InputError, match="window_size: expected >= 1, found 0"):
        list(Dataset.range(3).group_by_window(lambda x: 0, lambda key, window: window, window_size=0))
    with pytest.raises(InputError, match="key_func: expected one integer, found"):
        list(Dataset.range(3).group_by_window(lambda x: x / 2, lambda key, window: window, window_size=1))


def test_buckets_by_length_of_the_reference():
    assert plain(buckets()) == [
        [[1, 2, 3, 4], [5, 6, 7, 0]],
        [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]],
        [[0, 0], [21, 22]],
    ]


def test_buckets_that_are_padded_to_their_boundary():
    found = sentences().filter(lambda x: len(x) < 5)
    found = found.bucket_by_sequence_length(len, [3, 5], [2, 2, 2], pad_to_bucket_boundary=True)
    assert plain(found) == [[[1, 2, 3, 4], [5, 6, 7, 0]], [[0, 0], [21, 22]]]
    with pytest.raises(
        InvalidArgumentError, match="pad_to_bucket_boundary: expected lengths below 5, found 5"
    ):
        list(buckets(pad_to_bucket_boundary=True))


def test_buckets_without_padding_and_without_the_rest():
    rows = sentences().map(lambda x: (len(x), x[:1]))
    found = rows.bucket_by_sequence_length(
        lambda length, x: length, [3, 5], [2, 1, 3], no_padding=True, drop_remainder=True
    )
    assert [(n.tolist(), x.tolist()) for n, x in found] == [
        ([4], [[1]]), ([3], [[5]]), ([1, 2], [[0], [21]])
    ]  # fmt: skip
    minus = plain(buckets(padding_values=-1))
    assert minus[0] == [[1, 2, 3, 4], [5, 6, 7, -1]]
    with pytest.raises(InputError, match="expected 3 bucket_batch_sizes, one more than boundaries, found 2"):
        buckets(bucket_batch_sizes=[2, 2])


def test_distinct_elements_of_the_reference_in_the_order_of_their_first():
    assert plain(Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()) == [1, 37, 2]
    assert plain(Dataset.from_tensor_slices([b"b", b"a", b"b"]).unique()) == [b"b", b"a"]
    pairs = Dataset.from_tensor_slices(([1, 1, 1], [2, 3, 2])).unique()
    assert [(int(x), int(y)) for x, y in pairs] == [(1, 2), (1, 3)]


def test_random_numbers_follow_from_their_seed_and_can_be_addressed():
    first, second = Dataset.random(seed=4).take(10), Dataset.random(seed=4).take(10)
    assert plain(first) == plain(second) == plain(first)
    assert plain(Dataset.random(seed=5).take(10)) != plain(first)
    assert min(plain(first)) >= 0
    assert max(plain(first)) < 2**32
    assert len(set(plain(first))) == 10
    again = Dataset.random(seed=4, rerandomize_each_iteration=True).take(10)
    assert plain(again) != plain(again)
    assert Dataset.random().cardinality() == INFINITE
    assert Dataset.random().element_spec == TensorSpec((), "int64")
    assert obstacles(first.node) == []
    assert first.node.element(7, (0,)) == plain(first)[7]


def test_counters_and_single_elements_of_the_reference():
    assert plain(Dataset.counter().take(5)) == [0, 1, 2, 3, 4]
    assert plain(Dataset.counter(start=2, step=2).take(5)) == [2, 4, 6, 8, 10]
    assert plain(Dataset.counter(start=10, step=-1).take(3)) == [10, 9, 8]
    assert Dataset.counter(dtype="float32").element_spec == TensorSpec((), "float32")
    assert Dataset.from_tensor_slices([1, 2, 3]).batch(3).get_single_element().tolist() == [1, 2, 3]
    for wrong, found in ((Dataset.range(0), "none"), (Dataset.range(2), "more")):
        with pytest.raises(
            InvalidArgumentError, match=f"get_single_element: expected one element, found {found}"
        ):
            wrong.get_single_element()


def test_a_saved_dataset_is_read_without_its_pipeline(tmp_path):
    path = tmp_path / "saved"
    dataset = Dataset.range(7).map(lambda x: {"x": x, "text": b"a" * int(x)}).shuffle(7, seed=3)
    dataset.save(path)
    loaded = Dataset.load(path)
    assert [(int(each["x"]), each["text"]) for each in loaded] == [
        (int(each["x"]), each["text"]) for each in dataset.cache()
    ]
    assert loaded.cardinality() == 7
    assert obstacles(loaded.node) == []
    assert loaded.element_spec["x"] == TensorSpec((), "int64")
    assert [int(each) for each in Dataset.load(path).map(lambda row: row["x"]).skip(5)] == [
        int(each["x"]) for each in loaded
    ][5:]
    Dataset.range(3).save(path, compression="GZIP")
    assert plain(Dataset.load(path)) == [0, 1, 2]


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(
        InputError, match="gone: expected a dataset that save has written, found no such file"
    ):
        Dataset.load(tmp_path / "gone")
    (tmp_path / "text").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=str(tmp_path / "text")):
        Dataset.load(tmp_path / "text")
    with pytest.raises(InputError, match="save before repeat"):
        Dataset.range(3).repeat().save(tmp_path / "endless")


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (lambda: Dataset.range(4).group_by_window(lambda x: 0, lambda key, w: w, 2), "group_by_window"),
        (lambda: buckets(), "bucket_by_sequence_length"),
        (lambda: Dataset.range(4).unique(), "unique"),
    ],
)
def test_what_can_only_be_read_from_the_front_is_said(dataset, named, tmp_path):
    assert named in " ".join(obstacles(dataset().node))
    kept = dataset().cache(str(tmp_path / "kept"))
    assert obstacles(kept.node) == []
    assert plain(kept) == plain(dataset())


def from_front(length=7):
    """What a generator gives, and each number with which it was asked, or a function of its elements was."""
    asked: list[int] = []

    def numbers():
        for number in range(length):
            asked.append(number)
            yield number

    return Dataset.from_generator(numbers, output_signature=dt.data.TensorSpec((), "int64")), asked


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        lambda data: data.map(lambda x: x * 3),
        lambda data: data.map(lambda x, random: x + random.random(), seed=3).batch(3),
        lambda data: data.batch(3).repeat(),
        lambda data: data.repeat(3).batch(4, drop_remainder=True),
        lambda data: data.batch(2).prefetch(2).map(lambda x: x + 1, num_parallel_calls=2).repeat(2),
        lambda data: data.filter(lambda x: x % 2 == 0).repeat(2),
        lambda data: data.take(0).repeat(),
    ],
)
def test_what_is_read_from_the_front_goes_on_at_any_place(steps, known):
    data = from_front()[0]
    dataset = steps(data.apply(dt.data.experimental.assert_cardinality(7)) if known else data)
    whole = plain(dataset.take(30))
    for place in (0, 1, 2, 3, 6, 7, 8, 14, 29):
        later = DatasetIterator(dataset.node, position=place) if place else iter(dataset)
        assert plain(islice(later, max(0, len(whole) - place))) == whole[place:], place


def test_what_lies_before_a_place_costs_no_call_of_map_and_no_pass_of_known_length():
    data, asked = from_front()
    computed: list[int] = []
    mapped = data.map(lambda x: computed.append(int(x)) or x)
    (batch,) = islice(DatasetIterator(mapped.batch(2).repeat().node, position=2), 1)
    assert (plain([batch]), computed, asked) == ([[4, 5]], [4, 5], [0, 1, 2, 3, 4, 5])
    computed.clear()
    asked.clear()
    of_length = mapped.apply(dt.data.experimental.assert_cardinality(7))
    assert int(next(DatasetIterator(of_length.repeat().node, position=700 + 1))) == 1
    assert asked == [0, 1], "a hundred passes before are not read"


def test_parallel_calls_of_batches_and_interleaves_change_nothing():
    base = Dataset.range(8)
    wishes = {"num_parallel_calls": dt.data.AUTOTUNE, "deterministic": False}
    assert plain(base.batch(3, **wishes)) == plain(base.batch(3))
    make = lambda x: Dataset.range(int(x) * 10, int(x) * 10 + 3)  # noqa: E731
    assert plain(base.interleave(make, cycle_length=2, **wishes)) == plain(
        base.interleave(make, cycle_length=2)
    )
    assert plain(base.interleave(make)) == plain(base.interleave(make, cycle_length=4))
    for wrong in (
        lambda: base.batch(2, num_parallel_calls=0),
        lambda: base.interleave(make, num_parallel_calls=0),
    ):
        with pytest.raises(InputError, match="num_parallel_calls >= 1 or AUTOTUNE"):
            wrong()


@pytest.mark.parametrize("boundaries", [[5, 3], [3, 3], [0, 2], []])
def test_boundaries_of_buckets_rise(boundaries):
    with pytest.raises((InputError, SpecError), match="bucket_boundaries: expected rising numbers >= 1"):
        buckets(bucket_boundaries=boundaries, bucket_batch_sizes=[1] * (len(boundaries) + 1))


def test_steps_and_sources_of_a_dataset_of_files_are_plain_datasets(tmp_path):
    (tmp_path / "x").write_text("a\nbb\nb\n")
    lines = dt.data.TextLineDataset(str(tmp_path / "x"))
    assert plain(lines.batch(2)) == [[b"a", b"bb"], [b"b"]]
    assert plain(lines.batch(2).rebatch(3)) == [[b"a", b"bb", b"b"]]
    assert [plain(window) for window in lines.window(2)] == [[b"a", b"bb"], [b"b"]]
    assert plain(lines.unique().take(1)) == [b"a"]
    assert plain(lines.group_by_window(len, lambda key, window: window.batch(2), 2)) == [
        [b"a", b"b"],
        [b"bb"],
    ]
    assert plain(lines.bucket_by_sequence_length(len, [2], [2, 2], no_padding=True)) == [
        [b"a", b"b"],
        [b"bb"],
    ]
    assert plain(dt.data.TextLineDataset.range(2)) == [0, 1]
