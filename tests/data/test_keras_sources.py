"""Windows of series, the two parts of a dataset, and folders of texts, by the numbers of TensorFlow 2.15.1."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError

SERIES = np.arange(20) * 10
windows = dt.utils.timeseries_dataset_from_array


def values(dataset):
    return [
        [part.tolist() for part in each] if isinstance(each, tuple) else each.tolist() for each in dataset
    ]


def test_windows_of_a_series_are_tensorflows():
    # tf.keras.utils.timeseries_dataset_from_array(...) of the same arguments
    assert values(windows(SERIES, None, 3, batch_size=8))[-1] == [[160, 170, 180], [170, 180, 190]]
    assert values(windows(SERIES, SERIES[3:], 3, 2, 2, batch_size=4)) == [
        [[[0, 20, 40], [20, 40, 60], [40, 60, 80], [60, 80, 100]], [30, 50, 70, 90]],
        [[[80, 100, 120], [100, 120, 140], [120, 140, 160], [140, 160, 180]], [110, 130, 150, 170]],
    ]
    assert values(windows(SERIES, SERIES, 3, start_index=4, end_index=12, batch_size=3)) == [
        [[[40, 50, 60], [50, 60, 70], [60, 70, 80]], [40, 50, 60]],
        [[[70, 80, 90], [80, 90, 100], [90, 100, 110]], [70, 80, 90]],
    ]
    rows = np.arange(12).reshape(6, 2)
    assert values(windows(rows, None, 2, batch_size=2))[-1] == [[[8, 9], [10, 11]]]
    assert values(windows(SERIES, None, 30)) == []


def test_shuffled_windows_are_all_windows_and_anew_in_each_iteration():
    dataset = windows(SERIES, None, 3, shuffle=True, seed=5, batch_size=None)
    first, second = values(dataset), values(dataset)
    assert sorted(first) == sorted(second) == values(windows(SERIES, None, 3, batch_size=None))
    assert first != second
    assert values(windows(SERIES, None, 3, shuffle=True, seed=5, batch_size=None)) == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start_index": 20}, "start_index: expected from 0 to 19 for 20 rows, found 20"),
        ({"end_index": 0}, "end_index: expected from 1 to 20 for 20 rows, found 0"),
        ({"sequence_stride": 0}, "sequence_stride: expected from 1 to 19"),
        ({"sampling_rate": 25}, "sampling_rate: expected from 1 to 19"),
        ({"sequence_length": 0}, "sequence_length: expected at least 1, found 0"),
        ({"targets": SERIES[:7], "start_index": 4}, "expected 7 from row 4 on, found 3"),
    ],
)
def test_windows_that_cannot_be(arguments, words):
    with pytest.raises(InputError, match=words):
        windows(**{"data": SERIES, "targets": None, "sequence_length": 3} | arguments)


@pytest.mark.parametrize(
    ("sizes", "left", "right"),
    [
        ({"left_size": 0.25}, [0, 1], [2, 3, 4, 5, 6, 7, 8, 9]),
        ({"left_size": 0.5, "right_size": 0.3}, [0, 1, 2, 3, 4], [7, 8, 9]),
        ({"right_size": 3}, [0, 1, 2, 3, 4, 5, 6], [7, 8, 9]),
    ],
)
def test_parts_of_a_dataset_are_tensorflows(sizes, left, right):
    for dataset in (np.arange(10), dt.data.Dataset.range(10)):
        assert [values(part) for part in dt.utils.split_dataset(dataset, **sizes)] == [left, right]


def test_parts_of_several_arrays_and_of_a_shuffled_dataset():
    left, right = dt.utils.split_dataset([np.arange(4), np.arange(4) * 2], left_size=3)
    assert (values(left), values(right)) == ([[0, 0], [1, 2], [2, 4]], [[3, 6]])
    left, right = dt.utils.split_dataset(np.arange(100), 0.5, shuffle=True, seed=3)
    assert sorted(values(left) + values(right)) == list(range(100))
    assert values(left) == values(left) != list(range(50))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({}, "expected left_size or right_size, found neither"),
        ({"left_size": 8, "right_size": 3}, "two parts of at least one of 10 elements, found 8 and 3"),
        ({"left_size": 0.01}, "found 0 and 10"),
        ({"left_size": 10}, "left_size: expected a number of elements below 10, or a fraction"),
        ({"right_size": 1.5}, "right_size: expected a number .* found 1.5"),
    ],
)
def test_parts_that_cannot_be(sizes, words):
    with pytest.raises(InputError, match=words):
        dt.utils.split_dataset(np.arange(10), **sizes)


def test_folders_of_texts(tmp_path):
    for name, texts in {"neg": ["bad", "worse"], "pos": ["good", "better"]}.items():
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}.txt").write_text(text)
    (tmp_path / "pos" / "readme.md").write_text("no text of the class")
    load = dt.utils.text_dataset_from_directory
    dataset = load(tmp_path, shuffle=False, batch_size=3)
    assert dataset.class_names == ["neg", "pos"]
    assert values(dataset) == [[[b"bad", b"worse", b"good"], [0, 0, 1]], [[b"better"], [1]]]
    shortened = load(tmp_path, labels=None, max_length=3, batch_size=None, shuffle=False)
    assert list(shortened) == [b"bad", b"wor", b"goo", b"bet"]
    training, validation = load(tmp_path, validation_split=0.25, subset="both", label_mode="binary", seed=1)
    assert (len(training.file_paths), len(validation.file_paths)) == (3, 1)
    assert next(iter(validation))[1].shape == (1, 1)
    layer = dt.layers.TextVectorization()
    layer.adapt(dataset.map(lambda text, label: text))
    assert set(layer.get_vocabulary()[2:]) == {"bad", "worse", "good", "better"}
    with pytest.raises(InputError, match=r"expected files that end in \.txt, found none"):
        load(tmp_path / "pos", labels="inferred")
