"""Datasets of windows of a series, of the two parts of a dataset, and of folders of texts.

Source: `timeseries_dataset_from_array`, `split_dataset` and `text_dataset_from_directory` of
`tf.keras.utils` 2.15.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.labelled_folders import FILE_BYTES_MAX, labelled_files, loaded
from dtrain.data.stores.opening import read_whole
from dtrain.errors import InputError


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Any:
    """Return the windows of a series, [sequence_length, ...], each with its target where there are targets.

    The window at `i` has the rows ``i, i + sampling_rate, ...``; its target is ``targets[i]``.
    As in TensorFlow `start_index` and `end_index` cut both.

    Args:
        data: rows in the order of time.
        targets: one for each window, by the number of its first row; None: windows alone.
        sequence_length: the rows of a window.
        sequence_stride: the rows between the beginnings of two windows.
        sampling_rate: the rows between two rows of a window.
        batch_size: None for single windows.
        shuffle: whether in an order drawn by `seed`, and anew in each iteration by a buffer of 8 batches.
        seed: None: 0, so that all tasks of a run have one order.
        start_index, end_index: the rows that are used; None: from the first, to the last.

    Raises:
        InputError: an argument is out of range, or there are fewer targets than rows within the indices.
    """
    rows, where = np.asarray(data), "timeseries_dataset_from_array"
    for name, found, least, most in (
        ("sequence_length", sequence_length, 1, None),
        ("sequence_stride", sequence_stride, 1, len(rows) - 1),
        ("sampling_rate", sampling_rate, 1, len(rows) - 1),
        ("start_index", start_index, 0, len(rows) - 1),
        ("end_index", end_index, 1, len(rows)),
    ):
        if found is not None and (found < least or (most is not None and found > most)):
            limits = f"at least {least}" if most is None else f"from {least} to {most} for {len(rows)} rows"
            raise InputError(f"{where}: {name}: expected {limits}, found {found}")
    kept = slice(start_index or 0, len(rows) if end_index is None else end_index)
    rows = rows[kept]
    count = len(rows) - (sequence_length - 1) * sampling_rate
    wanted = None
    if targets is not None:
        count, wanted = min(count, len(targets)), np.asarray(targets)[kept]
        if len(wanted) < count:
            raise InputError(
                f"{where}: targets: expected {count} from row {kept.start} on, found {len(wanted)}; "
                "start_index cuts the targets too: give one for each row of data"
            )
    starts = np.arange(0, max(count, 0), sequence_stride)
    if shuffle:
        np.random.RandomState(seed or 0).shuffle(starts)
    offsets = np.arange(sequence_length) * sampling_rate

    def window(start: Any) -> Any:
        series = rows[start + offsets]
        return series if wanted is None else (series, wanted[start])

    return loaded(Dataset.from_tensor_slices(starts), window, batch_size, shuffle, seed)


def split_dataset(
    dataset: Any,
    left_size: float | None = None,
    right_size: float | None = None,
    shuffle: bool = False,
    seed: int | None = None,
) -> tuple[Dataset, Dataset]:
    """Return the first and the last elements of a dataset as two datasets.

    Args:
        dataset: a `Dataset` of known length, an array, or a tuple or list of arrays of one length.
        left_size: of the first part, as a number of elements or as a fraction in [0, 1]; None: all that the
            other part leaves.
        right_size: of the last part, likewise.
        shuffle: whether the elements are put into an order drawn by `seed` before.
        seed: None: 0, so that all tasks of a run have one order.

    Raises:
        InputError: a size is out of range, both are absent, they are more than there is, or a part is empty.
        TypeError: the dataset's length is unknown.
    """
    if not isinstance(dataset, Dataset):
        dataset = Dataset.from_tensor_slices(tuple(dataset) if isinstance(dataset, list) else dataset)
    total = len(dataset)
    if left_size is None and right_size is None:
        raise InputError("split_dataset: expected left_size or right_size, found neither")
    left, right = _part("left_size", left_size, total), _part("right_size", right_size, total)
    left, right = (
        total - (right or 0) if left is None else left,
        total - (left or 0) if right is None else right,
    )
    if left + right > total or not left or not right:
        raise InputError(
            f"split_dataset: expected two parts of at least one of {total} elements, found {left} and {right}"
        )
    if shuffle:
        dataset = dataset.shuffle(total, seed=seed or 0, reshuffle_each_iteration=False)
    return dataset.take(left), dataset.skip(total - right)


def _part(name: str, size: float | None, total: int) -> int | None:
    if size is None:
        return None
    if isinstance(size, bool) or not (0 < size < total if isinstance(size, int) else 0 <= size <= 1):
        raise InputError(
            f"split_dataset: {name}: expected a number of elements below {total}, or a fraction in [0, 1], "
            f"found {size!r}"
        )
    return size if isinstance(size, int) else round(size * total)


def text_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
) -> Any:
    """Return the texts (``.txt``) below a folder, as bytes, with their labels.

    Args:
        directory: a path or URL, with a folder for each class, or of texts alone where `labels` is not
            ``inferred``.
        labels, label_mode, class_names, batch_size, shuffle, seed, validation_split, subset, follow_links: as
            of `image_dataset_from_directory`.
        max_length: how many bytes of a text are kept; None: all.

    Raises:
        InputError: an argument is out of range, or there are no texts.
    """
    where = "text_dataset_from_directory"
    texts = labelled_files(where, directory, labels, label_mode, class_names, follow_links, (".txt",))

    def load(path: str, *label: Any) -> Any:
        text = read_whole(path, FILE_BYTES_MAX)[:max_length]
        return (text, *label) if label else text

    return texts.datasets(where, load, batch_size, shuffle, seed, validation_split, subset)
