"""Steps that tf.data's reference shows by examples: these are its results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.data import INFINITE, UNKNOWN, Dataset, TensorSpec
from dtrain.data.structure import arrays_of
from dtrain.errors import InputError, InvalidArgumentError


def plain(dataset):
    return [np.asarray(element).tolist() for element in dataset]


def filled(n):
    """Arrays of n times n: of lengths 1, 2, 3 and so on."""
    return Dataset.range(1, n + 1).map(lambda x: np.full(x, x))


def test_padded_batches():
    a = filled(4)
    assert plain(a.padded_batch(2)) == [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]
    five = [[[1, 0, 0, 0, 0], [2, 2, 0, 0, 0]], [[3, 3, 3, 0, 0], [4, 4, 4, 4, 0]]]
    assert plain(a.padded_batch(2, padded_shapes=5)) == five
    assert plain(a.padded_batch(2, padded_shapes=[5], padding_values=0)) == five
    minus = [[[1, -1, -1], [2, 2, -1], [3, 3, 3]]]
    assert plain(a.padded_batch(3, padding_values=-1, drop_remainder=True)) == minus
    first, _ = Dataset.zip((a, a)).padded_batch(2, padding_values=(-1, 100))
    assert [part.tolist() for part in first] == [[[1, -1], [2, 2]], [[1, 100], [2, 2]]]
    of_both, _ = Dataset.zip((a, a)).padded_batch(2, padded_shapes=([None], [5]), padding_values=-1)
    assert [part.shape for part in of_both] == [(2, 2), (2, 5)]


def test_padded_batches_of_text_and_of_dicts():
    rows = Dataset.from_generator(lambda: [{"a": [b"x"], "n": 1}, {"a": [b"y", b"z"], "n": 2}])
    [batch] = rows.padded_batch(2)
    assert batch["a"].tolist() == [[b"x", b""], [b"y", b"z"]]
    assert batch["n"].tolist() == [1, 2]


def test_the_form_of_padded_batches():
    a = filled(4)
    assert a.padded_batch(2).element_spec == TensorSpec((None, None), "int64")
    assert a.padded_batch(2, 5, drop_remainder=True).element_spec == TensorSpec((2, 5), "int64")
    assert a.padded_batch(3).cardinality() == 2
    with pytest.raises(InputError, match="at most 3 along an axis, found 4"):
        list(a.padded_batch(2, padded_shapes=3))
    with pytest.raises(InputError, match="arrays with 2 axes"):
        list(a.padded_batch(2, padded_shapes=[None, 3]))
    with pytest.raises(InputError, match="expected 2 shapes"):
        list(Dataset.zip((a, a)).padded_batch(2, padded_shapes=([None],)))


def test_a_part_of_a_padded_batch_is_as_long_as_the_whole():
    node = filled(5).padded_batch(3).node
    rows, size = node.part(0, (0,), lambda size: range(1))
    assert (rows.tolist(), size) == ([[1, 0, 0]], 3)
    streamed = Dataset.from_generator(lambda: [[1], [2, 2], [3]]).padded_batch(2)
    assert plain(streamed) == [[[1, 0], [2, 2]], [[3]]]


def of_windows(dataset, *arguments, **named):
    return [plain(window) for window in dataset.window(*arguments, **named)]


def test_windows():
    seven = Dataset.range(7)
    assert of_windows(seven, 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert of_windows(seven, 3, drop_remainder=True) == [[0, 1, 2], [3, 4, 5]]
    assert of_windows(seven, 3, 1, 1, True) == [[i, i + 1, i + 2] for i in range(5)]
    assert of_windows(seven, 3, 1, 2, True) == [[0, 2, 4], [1, 3, 5], [2, 4, 6]]
    assert of_windows(seven, 2, 4) == [[0, 1], [4, 5]]
    joined = seven.window(3, shift=1, drop_remainder=True).flat_map(lambda window: window.batch(3))
    assert plain(joined) == [[i, i + 1, i + 2] for i in range(5)]
    columns = Dataset.from_tensor_slices({"a": [1, 2, 3], "b": [4, 5, 6]}).window(2)
    assert [{key: plain(each[key]) for key in each} for each in columns] == [
        {"a": [1, 2], "b": [4, 5]},
        {"a": [3], "b": [6]},
    ]
    with pytest.raises(InputError, match="window: expected size, shift and stride >= 1"):
        seven.window(0)
    with pytest.raises(InputError, match="flat_map"):
        _ = seven.window(2).element_spec


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 12), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.booleans()
)
def test_windows_of_a_list(n, size, shift, stride, drop, streamed):
    expected = [list(range(start, n, stride))[:size] for start in range(0, n, shift)]
    expected = [window for window in expected if len(window) == size or not drop]
    source = Dataset.from_generator(lambda: range(n)) if streamed else Dataset.range(n)
    windows = source.window(size, shift, stride, drop)
    assert [plain(window) for window in windows] == expected
    assert windows.cardinality() in (len(expected), UNKNOWN)


def test_take_while_and_scan():
    assert plain(Dataset.range(10).take_while(lambda x: x < 5)) == [0, 1, 2, 3, 4]
    assert Dataset.range(10).take_while(lambda x: x < 5).cardinality() == UNKNOWN
    assert Dataset.range(0).take_while(lambda x: x < 5).cardinality() == 0
    assert plain(Dataset.range(9).batch(2).take_while(lambda x: x[0] < 3)) == [[0, 1], [2, 3]]
    sums = Dataset.range(10).scan(np.int64(0), lambda state, x: (state + x, state + x))
    assert plain(sums) == [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert plain(sums) == plain(sums), "each iteration begins with the initial state"
    assert sums.cardinality() == 10
    pairs = Dataset.range(3).enumerate().scan(0, lambda state, each: (state + 1, (each[0], state)))
    assert [tuple(map(int, pair)) for pair in pairs] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(InputError, match=r"scan: expected .* \(new_state, output\), found int"):
        list(Dataset.range(2).scan(0, lambda state, x: 1))


def test_choices_of_a_dataset():
    named = [Dataset.from_tensors(name).repeat() for name in ("foo", "bar", "baz")]
    chosen = Dataset.choose_from_datasets(named, Dataset.range(3).repeat(3))
    assert list(chosen) == ["foo", "bar", "baz"] * 3
    short = [Dataset.range(1), Dataset.range(10, 13)]
    choices = Dataset.from_tensor_slices([0, 0, 1, 1])
    assert plain(Dataset.choose_from_datasets(short, choices)) == [0]
    assert plain(Dataset.choose_from_datasets(short, choices, stop_on_empty_dataset=False)) == [0, 10, 11]
    with pytest.raises(InvalidArgumentError, match="below 2, found 2"):
        list(Dataset.choose_from_datasets(short, Dataset.range(2, 3)))


def test_samples_of_datasets():
    low, high = Dataset.range(3), Dataset.range(100, 103)
    mixed = Dataset.sample_from_datasets([low, high], weights=[0.5, 0.5], seed=1)
    assert sorted(plain(mixed)) == [0, 1, 2, 100, 101, 102]
    assert plain(mixed) == plain(mixed), "the same draws in each iteration"
    assert mixed.cardinality() == 6
    assert plain(Dataset.sample_from_datasets([low, high], weights=[0, 1])) == [100, 101, 102]
    endless = [Dataset.from_tensors(0).repeat(), Dataset.from_tensors(1).repeat()]
    draws = plain(Dataset.sample_from_datasets(endless, [3, 1], seed=2).take(4000))
    assert abs(np.mean(draws) - 0.25) < 0.03
    assert Dataset.sample_from_datasets(endless).cardinality() == INFINITE
    until = Dataset.sample_from_datasets([low, Dataset.range(100, 1100)], seed=3, stop_on_empty_dataset=True)
    assert [x for x in plain(until) if x < 100] == [0, 1, 2]
    assert len(plain(until)) < 100, "the end of the shorter one is the end"
    anew = Dataset.sample_from_datasets(endless, seed=5, rerandomize_each_iteration=True).take(64)
    assert plain(anew) != plain(anew)
    with pytest.raises(InputError, match="expected 2 weights"):
        Dataset.sample_from_datasets([low, high], weights=[1])
    with pytest.raises(InputError, match="at least one dataset"):
        Dataset.sample_from_datasets([])


def test_both_signatures_of_generators():
    def numbers(stop):
        yield from range(int(stop))

    by_types = Dataset.from_generator(numbers, np.int32, (), args=[3])
    assert by_types.element_spec == TensorSpec((), "int32")
    assert plain(by_types) == [0, 1, 2]

    def pairs():
        return [(1, [1.0, 2.0]), (2, [3.0, 4.0])]

    older = Dataset.from_generator(pairs, (np.int64, "float32"), ([], [2]))
    newer = Dataset.from_generator(
        pairs, output_signature=(TensorSpec((), np.int64), TensorSpec((2,), np.float32))
    )
    assert older.element_spec == newer.element_spec
    assert [array.tolist() for each in older for array in arrays_of(each)] == [1, [1.0, 2.0], 2, [3.0, 4.0]]
    any_shape = Dataset.from_generator(lambda: [{"x": [1, 2]}], {"x": np.float32})
    assert any_shape.element_spec == {"x": TensorSpec((2,), "float32")}
    assert Dataset.from_generator(pairs, newer.element_spec).element_spec == newer.element_spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_signature": TensorSpec((2,), "int64")}, r"elements of shape \(2,\), .* found \(3,\)"),
        ({"output_signature": TensorSpec((None, None), "int64")}, r"found \(3,\)"),
        ({"output_types": "int64", "output_signature": TensorSpec((), "int64")}, "found both"),
        ({"output_shapes": ()}, "output_types beside output_shapes"),
    ],
)
def test_signatures_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        list(Dataset.from_generator(lambda: [[1, 2, 3]], **arguments))


def test_files_by_pattern(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text("")
    found = list(Dataset.list_files(f"{tmp_path}/*.txt", shuffle=False))
    assert found == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    both = Dataset.list_files([f"{tmp_path}/*.txt", f"{tmp_path}/*.csv"], shuffle=None, seed=4)
    assert sorted(both) == sorted([*found, str(tmp_path / "c.csv")])
    with pytest.raises(InvalidArgumentError, match="no file matches"):
        Dataset.list_files(f"{tmp_path}/*.none")


FURTHER = [
    lambda ds: ds.map(lambda x: np.full(x % 4, x)).padded_batch(3),
    lambda ds: ds.window(3, 2).flat_map(lambda window: window.batch(3)),
    lambda ds: ds.take_while(lambda x: x < 25),
    lambda ds: ds.scan(0, lambda state, x: (state + 1, x * 10 + state)),
    lambda ds: Dataset.sample_from_datasets([ds, Dataset.range(3)], seed=1),
    lambda ds: Dataset.choose_from_datasets([Dataset.range(5), Dataset.range(5, 9)], ds.map(lambda x: x % 2)),
]


def on(node, first):
    """The pipeline `node` with another source in the first one's place, through all its steps."""
    if not node.inputs:
        return first
    return node.with_inputs([on(node.inputs[0], first), *node.inputs[1:]])


def flat(dataset):
    return [np.asarray(element).tolist() for element in dataset]


@every_row("step", FURTHER, ids=range(len(FURTHER)))
def test_a_step_on_other_inputs_is_the_same_step(step):
    made = step(Dataset.range(9))
    other = Dataset(on(made.node, Dataset.range(20, 33).node))
    assert flat(other) == flat(step(Dataset.range(20, 33)))
    assert other.element_spec == made.element_spec
    assert flat(made) == flat(step(Dataset.range(9)))
