"""Images as arrays: decoded by Pillow, resized as by TensorFlow: half-pixel centres, no antialiasing."""

import io
from typing import Any

import numpy as np

from dtrain.data.stores.opening import read_whole
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.expansion import check_growth
from dtrain.types import Array

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
    except OSError as error:
        if error.strerror:
            raise InputError(f"{where}: cannot be read: {error.strerror}") from error
        raise InputError(f"{where}: does not decode as an image: {str(error)[:200]}") from error
    except (ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
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
    """Return an image, float32, in another size.

    Args:
        image: [height, width, channels].
        size: height and width.
        interpolation: of INTERPOLATIONS.
        crop: whether the largest part in its middle with the wanted ratio of sides is taken; else the ratio
            changes.
    """
    if crop:
        image = _middle(image, size)
    for axis, length in enumerate(size):
        image = _along(image, axis, length, interpolation)
    return image.astype(np.float32, copy=False)


def _middle(image: Array, size: tuple[int, int]) -> Array:
    height, width = image.shape[:2]
    rows = min(height, int(width * size[0] / size[1]))
    columns = min(width, int(height * size[1] / size[0]))
    top, left = (height - rows) // 2, (width - columns) // 2
    return image[top : top + rows, left : left + columns]


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
