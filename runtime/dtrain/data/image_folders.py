"""Folders of images as a dataset: found, decoded by Pillow, resized as by TensorFlow.

Source: `tf.keras.utils.image_dataset_from_directory` 2.15; sizes have half-pixel centres and no
antialiasing.
"""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.data.dataset import Dataset
from dtrain.data.sources import FileNames
from dtrain.data.stores.opening import read_whole, urls_below
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import check_growth
from dtrain.formats.remote_files import is_url
from dtrain.types import Array

SEED_MAX = 10**6


class ImageDataset(Dataset):
    """Images, and labels where there are any.

    Attributes:
        class_names: the folders, in the order of the labels; None without labels.
        file_paths: the images, in the order before a shuffle.
    """

    class_names: list[str] | None
    file_paths: list[str]


def image_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
) -> Any:
    """Return the images below a folder, float32 [height, width, channels], with their labels.

    Needs Pillow: ``pip install -e '.[images]'`` in dtrain's clone. An image is decoded when it
    is read, and any of them by its number.

    Args:
        directory: a path or URL, with a folder for each class, or of images alone where `labels` is not
            ``inferred``.
        labels: ``inferred`` by folders, None, or a list in the order of the sorted paths.
        label_mode: ``int``, ``categorical``, ``binary`` (float32 of two classes), or None for none.
        class_names: the folders, for another order than the alphabet's.
        color_mode: ``rgb``, ``rgba`` or ``grayscale``.
        batch_size: None for single images.
        image_size: (height, width) to which images are resized.
        shuffle: whether in an order drawn by `seed`, and anew in each iteration by a buffer of 8 batches.
        seed: None: 0, so that all tasks of a run have one order.
        validation_split: the fraction that is held out, from 0 to 1; None: nothing.
        subset: ``training``, ``validation``, or ``both`` for a pair; the last images are held out.
        interpolation: ``bilinear`` or ``nearest``.
        follow_links: whether links to folders are followed.
        crop_to_aspect_ratio: whether a window of the new aspect is taken first.

    Raises:
        InputError: an argument is out of range, or there are no images.
    """
    _check("label_mode", label_mode, ("int", "categorical", "binary", None))
    _check("color_mode", color_mode, tuple(MODES))
    _check("interpolation", interpolation, INTERPOLATIONS)
    _check_split(validation_split, subset)
    folder = os.fspath(directory).rstrip("/") or "/"
    images = _images_of(folder, labels, class_names, follow_links).labelled(label_mode)
    if shuffle:
        images = images.shuffled((seed or 0) % SEED_MAX)

    def load(path: str, *label: Any) -> Any:
        image = read_image(path, color_mode)
        image = resized(image, image_size, interpolation, crop=crop_to_aspect_ratio)
        return (image, *label) if label else image

    kept = len(images.paths) - int((validation_split or 0.0) * len(images.paths))
    buffer = (1024 if batch_size is None else batch_size * 8) * shuffle
    training, held_out = images.part(range(kept)), images.part(range(kept, len(images.paths)))
    if subset == "both":
        return training.dataset(load, batch_size, buffer, seed), held_out.dataset(load, batch_size)
    return (held_out if subset == "validation" else training).dataset(load, batch_size, buffer, seed)


class _Images(msgspec.Struct, frozen=True):
    """Images and the labels of each; None without labels."""

    paths: list[str]
    labels: Array | None
    names: list[str] | None

    def labelled(self, mode: str | None) -> "_Images":
        if mode is None or self.labels is None:
            return _Images(self.paths, None, None)
        classes = len(self.names or ())
        if mode == "binary" and classes != 2:
            raise InputError(f"image_dataset_from_directory: binary labels need 2 classes, found {classes}")
        if mode == "categorical":
            return replace(self, labels=np.eye(classes, dtype=np.float32)[self.labels])
        as_column = self.labels.astype(np.float32).reshape(-1, 1)
        return replace(self, labels=as_column) if mode == "binary" else self

    def shuffled(self, seed: int) -> "_Images":
        return self.part(np.random.RandomState(seed).permutation(len(self.paths)))

    def part(self, numbers: Any) -> "_Images":
        labels = None if self.labels is None else self.labels[numbers]
        return replace(self, paths=[self.paths[number] for number in numbers], labels=labels)

    def dataset(
        self, load: Callable[..., Any], batch_size: int | None, buffer: int = 0, seed: int | None = None
    ) -> ImageDataset:
        """Return what `load` makes of each path and label; a buffer of 0 is no shuffle."""
        rows = self.paths if self.labels is None else (self.paths, self.labels)
        images = Dataset(FileNames(rows, self.paths))
        if buffer:
            images = images.shuffle(buffer, seed=seed)
        images = images.map(load)
        made = ImageDataset((images if batch_size is None else images.batch(batch_size)).node)
        made.class_names, made.file_paths = self.names, self.paths
        return made


def _check_split(validation_split: float | None, subset: str | None) -> None:
    _check("subset", subset, ("training", "validation", "both", None))
    if (validation_split is None) != (subset is None):
        raise InputError("image_dataset_from_directory: expected validation_split and subset together")
    if validation_split is not None and not 0 < validation_split < 1:
        raise InputError(
            f"image_dataset_from_directory: expected 0 < validation_split < 1, found {validation_split}"
        )


def _check(name: str, found: Any, expected: Sequence[Any]) -> None:
    if found not in expected:
        raise InputError(
            f"image_dataset_from_directory: {name}: expected {', '.join(map(str, expected))}, found {found!r}"
        )


def _images_of(directory: str, labels: Any, class_names: Sequence[str] | None, follow_links: bool) -> _Images:
    """Return the images of a folder, sorted, each with the number of its class."""
    where = shown(directory)
    if not is_url(directory) and not Path(directory).is_dir():
        raise InputError(f"{where}: expected a folder of images, found none")
    folders, images_in = _listed(directory, follow_links)
    if isinstance(labels, str) and labels == "inferred":
        if class_names is not None and set(class_names) != set(folders):
            raise InputError(
                f"{where}: class_names: expected the folders {', '.join(folders)}, found "
                f"{', '.join(class_names)}"
            )
        names = list(folders if class_names is None else class_names)
        by_class = [images_in(f"{directory}/{name}") for name in names]
        paths = [path for images in by_class for path in images]
        numbers = np.repeat(np.arange(len(names), dtype=np.int32), [len(images) for images in by_class])
    else:
        paths = images_in(directory)
        names, numbers = None, None
        if labels is not None:
            numbers = np.asarray(labels, np.int32)
            names = [str(number) for number in np.unique(numbers)]
            if len(numbers) != len(paths):
                raise InputError(
                    f"{where}: expected a label for each of {len(paths)} images, found {len(numbers)}"
                )
    if not paths:
        raise InputError(f"{where}: expected images that end in {', '.join(SUFFIXES)}, found none")
    return _Images(paths, numbers, names)


def _listed(directory: str, follow_links: bool) -> tuple[list[str], Callable[[str], list[str]]]:
    """Return the folders of a directory, and a function from a folder to the images below it, in order."""
    if not is_url(directory):
        entries = os.scandir(directory)
        classes = sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))
        return classes, lambda folder: _images_below(folder, follow_links)
    parts = [url.removeprefix(f"{directory}/").split("/") for url in urls_below(directory)]
    parts.sort(key=lambda names: [(place < len(names) - 1, name) for place, name in enumerate(names)])
    images = [f"{directory}/{'/'.join(names)}" for names in parts if _is_image(names[-1])]
    folders = sorted({names[0] for names in parts if len(names) > 1 and not names[0].startswith(".")})
    return folders, lambda folder: [url for url in images if url.startswith(f"{folder}/")]


def _images_below(folder: str, follow_links: bool) -> list[str]:
    found = []
    for base, folders, files in os.walk(folder, followlinks=follow_links):
        folders.sort()
        found += [f"{base}/{name}" for name in sorted(files) if _is_image(name)]
    return found


def _is_image(name: str) -> bool:
    """Return whether a name is that of an image; macOS writes `._1.jpg` beside `1.jpg`, which is none."""
    return name.lower().endswith(SUFFIXES) and not name.startswith("._")


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
MODES = {"grayscale": ("L", 1), "rgb": ("RGB", 3), "rgba": ("RGBA", 4)}
INTERPOLATIONS = ("bilinear", "nearest")
FILE_BYTES_MAX = 1 << 30
FORMATS = ("BMP", "GIF", "JPEG", "PNG")
"""The only ones that are looked for: Pillow hands some others to other programs."""
_GREY = np.array([9797, 19234, 3737], np.int32)
"""What red, green and blue are in grey, of 32,768: 0.299 and 0.587 as libpng rounds them."""
PIXEL_BYTES = 5
"""Pillow's 4, and a part of the copies that are made of them: 13 megapixels are free."""


def read_image(path: str, color_mode: str) -> Array:
    """Return an image, uint8 [height, width, channels]; of an animation the first picture.

    Raises:
        InputError: Pillow is not installed, or the file cannot be read or is no image.
    """
    where = shown(path)
    try:
        from PIL import Image, UnidentifiedImageError  # a fifth of a second, so only where images are read
    except ImportError:
        raise InputError(
            f"{where}: reading images needs Pillow: `pip install -e '.[images]'` in dtrain's clone"
        ) from None
    try:
        data = read_whole(path, FILE_BYTES_MAX)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_growth(image.width * image.height * PIXEL_BYTES, len(data), where)
            if color_mode == "grayscale":
                image.draft("L", image.size)  # a JPEG holds the grey itself
            pixels = _pixels(image, color_mode)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"{where}: does not decode as an image; expected a whole file of {' or '.join(FORMATS)}"
        ) from None
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{where}: cannot be read: {error.strerror}") from error
        raise InputError(f"{where}: does not decode as an image: {str(error)[:200]}") from error
    return pixels.reshape(*pixels.shape[:2], MODES[color_mode][1])


def _pixels(image: Any, color_mode: str) -> Array:
    """Return the pixels of an open image as `tf.io.decode_image` has them: of 16 bits the upper 8."""
    from PIL import Image

    if image.mode.startswith("I"):  # grey of 16 bits, of which `convert` would keep the lower 8
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if color_mode != "grayscale" or image.mode in ("1", "L"):
        return np.asarray(image.convert(MODES[color_mode][0]))
    colours: Array = np.asarray(image.convert("RGB")).astype(np.int32) @ _GREY >> 15
    return colours.astype(np.uint8)


def resized(image: Array, size: tuple[int, int], interpolation: str, *, crop: bool) -> Array:
    """Return an image of shape [height, width, channels] as float32 in the size (height, width).

    With `crop` the largest part in its middle that has the wanted ratio of sides is taken.
    """
    if crop:
        height, width = image.shape[:2]
        rows = min(height, int(width * size[0] / size[1]))
        columns = min(width, int(height * size[1] / size[0]))
        top, left = (height - rows) // 2, (width - columns) // 2
        image = image[top : top + rows, left : left + columns]
    for axis, length in enumerate(size):
        image = _along(image, axis, length, interpolation)
    return image.astype(np.float32, copy=False)


def _along(image: Array, axis: int, length: int, interpolation: str) -> Array:
    found = image.shape[axis]
    if found == length:
        return image
    centres: np.ndarray[Any, np.dtype[np.float32]] = (
        np.arange(length, dtype=np.float32) + np.float32(0.5)
    ) * (np.float32(found / length))
    if interpolation == "nearest":
        nearest: Array = image.take(np.minimum(np.floor(centres).astype(np.int64), found - 1), axis)
        return nearest
    places = centres - np.float32(0.5)
    lower = np.floor(places)
    weights = (places - lower).reshape([-1 if each == axis else 1 for each in range(3)])
    below = image.take(np.clip(lower.astype(np.int64), 0, found - 1), axis).astype(np.float32)
    above = image.take(np.clip(lower.astype(np.int64) + 1, 0, found - 1), axis).astype(np.float32)
    between: Array = below + (above - below) * weights
    return between
