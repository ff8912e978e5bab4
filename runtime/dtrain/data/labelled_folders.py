"""Folders of files with a folder for each class: found in order, labelled, shuffled, split, and batched.

Source: `tf.keras.utils.image_dataset_from_directory` and `text_dataset_from_directory` 2.15.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.data.dataset import Dataset
from dtrain.data.sources import FileNames
from dtrain.data.stores.opening import urls_below
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.remote_files import is_url
from dtrain.types import Array

SEED_MAX = 10**6
FILE_BYTES_MAX = 1 << 30


class LabelledDataset(Dataset):
    """Contents of files, and labels where there are any.

    Attributes:
        class_names: the folders, in the order of the labels; None without labels.
        file_paths: the files, in the order before a shuffle.
    """

    class_names: list[str] | None
    file_paths: list[str]


class LabelledFiles(msgspec.Struct, frozen=True):
    """Files and the label of each; None without labels."""

    paths: list[str]
    labels: Array | None
    names: list[str] | None

    def part(self, numbers: Any) -> "LabelledFiles":
        labels = None if self.labels is None else self.labels[numbers]
        return replace(self, paths=[self.paths[number] for number in numbers], labels=labels)

    def datasets(
        self,
        where: str,
        load: Callable[..., Any],
        batch_size: int | None,
        shuffle: bool,
        seed: int | None,
        validation_split: float | None,
        subset: str | None,
    ) -> Any:
        """Return the dataset of what `load` makes of each path and label; two for the subset ``both``."""
        expect(where, "subset", subset, ("training", "validation", "both", None))
        if (validation_split is None) != (subset is None):
            raise InputError(f"{where}: expected validation_split and subset together")
        if validation_split is not None and not 0 < validation_split < 1:
            raise InputError(f"{where}: expected 0 < validation_split < 1, found {validation_split}")
        count = len(self.paths)
        order = np.random.RandomState((seed or 0) % SEED_MAX).permutation(count) if shuffle else range(count)
        kept = count - int((validation_split or 0.0) * count)
        training, held_out = self.part(order[:kept]), self.part(order[kept:])
        if subset == "both":
            return training._dataset(load, batch_size, shuffle, seed), held_out._dataset(load, batch_size)
        return (held_out if subset == "validation" else training)._dataset(load, batch_size, shuffle, seed)

    def _dataset(
        self, load: Callable[..., Any], batch_size: int | None, shuffle: bool = False, seed: int | None = None
    ) -> LabelledDataset:
        rows = self.paths if self.labels is None else (self.paths, self.labels)
        files = Dataset(FileNames(rows, self.paths))
        made = LabelledDataset(loaded(files, load, batch_size, shuffle, seed).node)
        made.class_names, made.file_paths = self.names, self.paths
        return made


def loaded(
    names: Dataset, load: Callable[..., Any], batch_size: int | None, shuffle: bool, seed: int | None
) -> Dataset:
    """Return what `load` makes of each name, in batches; shuffled by a buffer of 8 batches as Keras does."""
    if shuffle:
        names = names.shuffle(1024 if batch_size is None else batch_size * 8, seed=seed)
    elements = names.map(load)
    return elements if batch_size is None else elements.batch(batch_size)


def expect(where: str, name: str, found: Any, expected: Sequence[Any]) -> None:
    """Raise an `InputError` unless `found` is one of the `expected` values of an argument."""
    if found not in expected:
        raise InputError(f"{where}: {name}: expected {', '.join(map(str, expected))}, found {found!r}")


def labelled_files(
    where: str,
    directory: str | os.PathLike[str],
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    follow_links: bool,
    suffixes: tuple[str, ...],
) -> LabelledFiles:
    """Return the files below a folder that end in one of `suffixes`, with labels in the form of `label_mode`.

    Raises:
        InputError: from the function `where`: an argument is out of range, or there are no files.
    """
    expect(where, "label_mode", label_mode, ("int", "categorical", "binary", None))
    folder = os.fspath(directory).rstrip("/") or "/"
    paths, numbers, names = _found(folder, labels, class_names, follow_links, suffixes)
    if label_mode is None or numbers is None or names is None:
        return LabelledFiles(paths, None, None)
    if label_mode == "binary" and len(names) != 2:
        raise InputError(f"{where}: binary labels need 2 classes, found {len(names)}")
    if label_mode == "categorical":
        numbers = np.eye(len(names), dtype=np.float32)[numbers]
    elif label_mode == "binary":
        numbers = numbers.astype(np.float32).reshape(-1, 1)
    return LabelledFiles(paths, numbers, names)


def _found(
    directory: str,
    labels: Any,
    class_names: Sequence[str] | None,
    follow_links: bool,
    suffixes: tuple[str, ...],
) -> tuple[list[str], Array | None, list[str] | None]:
    """Return the files of a folder, sorted, the number of each one's class, and the classes."""
    where = shown(directory)
    if not is_url(directory) and not Path(directory).is_dir():
        raise InputError(f"{where}: expected a folder of files that end in {', '.join(suffixes)}, found none")
    folders, files_in = _listed(directory, follow_links, suffixes)
    names: list[str] | None = None
    numbers: Array | None = None
    if isinstance(labels, str) and labels == "inferred":
        if class_names is not None and set(class_names) != set(folders):
            raise InputError(
                f"{where}: class_names: expected the folders {', '.join(folders)}, found "
                f"{', '.join(class_names)}"
            )
        names = list(folders if class_names is None else class_names)
        by_class = [files_in(f"{directory}/{name}") for name in names]
        paths = [path for files in by_class for path in files]
        numbers = np.repeat(np.arange(len(names), dtype=np.int32), [len(files) for files in by_class])
    else:
        paths = files_in(directory)
        if labels is not None:
            numbers = np.asarray(labels, np.int32)
            names = [str(number) for number in np.unique(numbers)]
            if len(numbers) != len(paths):
                raise InputError(
                    f"{where}: expected a label for each of {len(paths)} files, found {len(numbers)}"
                )
    if not paths:
        raise InputError(f"{where}: expected files that end in {', '.join(suffixes)}, found none")
    return paths, numbers, names


def _listed(
    directory: str, follow_links: bool, suffixes: tuple[str, ...]
) -> tuple[list[str], Callable[[str], list[str]]]:
    """Return the folders of a directory, and a function from a folder to the files below it, in order."""

    def wanted(name: str) -> bool:
        # macOS writes `._1.jpg` beside `1.jpg`, which has no image.
        return name.lower().endswith(suffixes) and not name.startswith("._")

    def below(folder: str) -> list[str]:
        found = []
        for base, folders, files in os.walk(folder, followlinks=follow_links):
            folders.sort()
            found += [f"{base}/{name}" for name in sorted(files) if wanted(name)]
        return found

    if not is_url(directory):
        entries = os.scandir(directory)
        return sorted(each.name for each in entries if each.is_dir() and not each.name.startswith(".")), below
    parts = [url.removeprefix(f"{directory}/").split("/") for url in urls_below(directory)]
    parts.sort(key=lambda names: [(place < len(names) - 1, name) for place, name in enumerate(names)])
    kept = [f"{directory}/{'/'.join(names)}" for names in parts if wanted(names[-1])]
    folders = sorted({names[0] for names in parts if len(names) > 1 and not names[0].startswith(".")})
    return folders, lambda folder: [url for url in kept if url.startswith(f"{folder}/")]
