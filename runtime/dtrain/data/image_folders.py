"""Folders of images as a dataset: found, decoded by Pillow, resized as by TensorFlow.

Source: `tf.keras.utils.image_dataset_from_directory` 2.15; sizes have half-pixel centres and no
antialiasing.
"""

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.labelled_folders import FILE_BYTES_MAX, expect, labelled_files
from dtrain.data.stores.opening import read_whole
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import check_growth
from dtrain.types import Array


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
    where = "image_dataset_from_directory"
    expect(where, "color_mode", color_mode, tuple(MODES))
    expect(where, "interpolation", interpolation, INTERPOLATIONS)
    images = labelled_files(where, directory, labels, label_mode, class_names, follow_links, SUFFIXES)

    def load(path: str, *label: Any) -> Any:
        image = read_image(path, color_mode)
        image = resized(image, image_size, interpolation, crop=crop_to_aspect_ratio)
        return (image, *label) if label else image

    return images.datasets(where, load, batch_size, shuffle, seed, validation_split, subset)


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
MODES = {"grayscale": ("L", 1), "rgb": ("RGB", 3), "rgba": ("RGBA", 4)}
INTERPOLATIONS = ("bilinear", "nearest")
FORMATS = ("BMP", "GIF", "JPEG", "PNG")
"""The only ones that are looked for: Pillow hands some others to other programs."""
_GREY = np.array([9797, 19234, 3737], np.int32)
"""What red, green and blue are in grey, of 32,768: 0.299 and 0.587 as libpng rounds them."""
PIXEL_BYTES = 5
"""Pillow's 4, and a part of the copies that are made of them: 13 megapixels are free."""


def read_image(path: str, color_mode: str) -> Array:
    """Return an image, uint8 [height, width, channels]; of an animation the first picture."""
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
    """Return an image, float32, in the size (height, width); `crop` takes its largest part of that aspect."""
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
