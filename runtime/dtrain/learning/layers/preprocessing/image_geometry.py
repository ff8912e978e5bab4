"""Images under an affine map, and images of another size, as TensorFlow computes them.

Maps follow `ImageProjectiveTransformV3`. Sizes follow `tf.image.resize`: each axis by itself, of weighted
neighbours.
"""

from collections.abc import Callable, Iterator
from math import ceil
from typing import NamedTuple

import numpy as np

from dtrain.types import Array

INTERPOLATIONS = ("bilinear", "nearest")
_ONE = np.float32(1)


def projected(x: Array, maps: Array, fill_mode: str, interpolation: str, fill_value: float) -> Array:
    """Read each pixel (x, y) at (a x + b y + c, d x + e y + f).

    Args:
        x: images [batch, height, width, channels].
        maps: a to f of each image, float32.
        fill_mode: what lies outside: one of `FILL_MODES`.
    """
    found = np.empty_like(x)
    height, width = x.shape[1:3]
    for image, matrix, into in zip(x, maps, found, strict=True):
        flat = image.reshape(height * width, -1)
        total = np.zeros((height * width, flat.shape[1]), np.float32)
        for places, inside, weights in _taps(matrix, height, width, fill_mode, interpolation):
            values = flat.take(places, axis=0)
            if not inside.all():
                values[~inside] = fill_value
            total += np.multiply(values, weights[:, np.newaxis], out=values)
        into[...] = total.reshape(image.shape)
    return found


def projected_back(dy: Array, maps: Array, fill_mode: str, interpolation: str) -> Array:
    found = np.empty_like(dy)
    height, width, channels = dy.shape[1:]
    for image, matrix, into in zip(dy, maps, found, strict=True):
        flat = image.reshape(height * width, channels)
        total = np.zeros_like(flat)
        for places, inside, weights in _taps(matrix, height, width, fill_mode, interpolation):
            np.add.at(total, places, flat * (weights * inside)[:, np.newaxis])
        into[...] = total.reshape(image.shape)
    return found


def _taps(
    matrix: Array, height: int, width: int, fill_mode: str, interpolation: str
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield, for all pixels of an image, a place that each reads, whether it exists, and its weight."""
    a, b, c, d, e, f = matrix
    across = np.arange(width, dtype=np.float32)
    down = np.arange(height, dtype=np.float32)[:, np.newaxis]
    x = FILL_MODES[fill_mode]((a * across + b * down + c).reshape(-1), width)
    y = FILL_MODES[fill_mode]((d * across + e * down + f).reshape(-1), height)
    if interpolation == "nearest":
        reads = [(_rounded(x), _rounded(y), np.ones_like(x))]
    else:
        left, top = np.floor(x), np.floor(y)
        right_share, lower_share = x - left, y - top
        reads = [
            (left, top, (left + _ONE - x) * (top + _ONE - y)),
            (left + _ONE, top, right_share * (top + _ONE - y)),
            (left, top + _ONE, (left + _ONE - x) * lower_share),
            (left + _ONE, top + _ONE, right_share * lower_share),
        ]
    for column, row, weights in reads:
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        columns, rows = (column.clip(0, width - 1), row.clip(0, height - 1))
        yield rows.astype(np.int64) * width + columns.astype(np.int64), inside, weights


def _rounded(x: Array) -> Array:
    """Return the nearest whole number, of two the one that is farther from 0."""
    return np.copysign(np.floor(np.abs(x).astype(np.float64) + 0.5), x)


def _limited(x: Array, length: int) -> Array:
    return x.clip(np.float32(0), np.float32(length - 1))


def _reflected(x: Array, length: int) -> Array:
    """Mirror at the edges: d c b a | a b c d | d c b a."""
    twice = np.float32(2 * length)
    low = x + twice * np.trunc(-x / twice)
    low = np.where(low < -length, low + twice, -low - _ONE)
    high = x - twice * np.trunc(x / twice)
    high = np.where(high >= length, twice - high - _ONE, high)
    return _limited(np.where(x < 0, low, np.where(x > length - 1, high, x)), length)


def _wrapped(x: Array, length: int) -> Array:
    """Repeat: a b c d | a b c d | a b c d."""
    last = np.float32(max(length - 1, 1))
    low = x + np.float32(length) * (np.trunc(-x / last) + _ONE)
    high = x - np.float32(length) * np.trunc(x / last)
    return _limited(np.where(x < 0, low, np.where(x > length - 1, high, x)), length)


FILL_MODES: dict[str, Callable[[Array, int], Array]] = {
    "reflect": _reflected,
    "wrap": _wrapped,
    "constant": lambda x, length: x,
    "nearest": _limited,
}


METHODS = (
    *("bilinear", "nearest", "bicubic", "area"),
    *("lanczos3", "lanczos5", "gaussian", "mitchellcubic"),
)
_TABLE = 1024
"""Steps into which TensorFlow divides the distance of two pixels for bicubic weights."""
_TINY_SUM = 1000 * np.finfo(np.float32).tiny


class Taps(NamedTuple):
    """For each pixel of a resized axis: which given ones it reads, and with which weights."""

    places: Array
    weights: Array


def resized(x: Array, height: int, width: int, method: str) -> Array:
    return _along(_along(x, 1, height, method), 2, width, method)


def resized_back(dy: Array, height: int, width: int, method: str) -> Array:
    for axis, length in ((1, height), (2, width)):
        taps = taps_of(length, dy.shape[axis], method)
        matrix = np.zeros((len(taps.places), length), np.float32)
        rows = np.broadcast_to(np.arange(len(matrix))[:, np.newaxis], taps.places.shape)
        np.add.at(matrix, (rows, taps.places), taps.weights)
        dy = np.moveaxis(np.tensordot(dy, matrix, (axis, 0)), -1, axis)
    return np.ascontiguousarray(dy)


def window_of_aspect(height: int, width: int, new_height: int, new_width: int) -> tuple[slice, slice]:
    high = min(height, int(np.float32(width * new_height) / np.float32(new_width)))
    wide = min(width, int(np.float32(height * new_width) / np.float32(new_height)))
    top, left = (height - high) // 2, (width - wide) // 2
    return slice(top, top + high), slice(left, left + wide)


def _along(x: Array, axis: int, length: int, method: str) -> Array:
    if x.shape[axis] == length and method in ("bilinear", "nearest", "area"):
        return x
    taps = taps_of(x.shape[axis], length, method)
    shape = [1] * x.ndim
    shape[axis] = length
    if method == "nearest":
        return x.take(taps.places[:, 0], axis)
    found = np.zeros((*x.shape[:axis], length, *x.shape[axis + 1 :]), np.float32)
    for places, weights in zip(taps.places.T, taps.weights.T, strict=True):
        if weights.any():
            taken = x.take(places, axis)
            found += np.multiply(taken, weights.reshape(shape), out=taken)
    return found


def taps_of(length: int, new: int, method: str) -> Taps:
    scale = np.float32(length) / np.float32(new)
    number = np.arange(new, dtype=np.float32)
    if method == "nearest":
        place = np.minimum(np.floor((number + np.float32(0.5)) * scale), length - 1)
        return Taps(place.astype(np.int64)[:, np.newaxis], np.ones((new, 1), np.float32))
    if method == "area":
        return _area(length, number, scale)
    middle = (number + np.float32(0.5)) * scale
    if method == "bilinear":
        return _bilinear(length, middle - np.float32(0.5))
    if method == "bicubic":
        return _bicubic(length, middle - np.float32(0.5))
    middle = (number + np.float32(0.5)) * (np.float32(1) / (np.float32(new) / np.float32(length)))
    radius, kernel = _KERNELS[method]
    first = np.ceil(middle - np.float32(radius) - np.float32(0.5)).astype(np.int64)
    places = first[:, np.newaxis] + np.arange(ceil(2 * radius) + 1)
    inside = (places >= 0) & (places < length)
    inside &= places <= np.floor(middle + np.float32(radius) - np.float32(0.5))[:, np.newaxis]
    distance = np.abs(places + np.float32(0.5) - middle[:, np.newaxis])
    return _normal(places, np.where(inside, kernel(distance), 0), length)


def _bilinear(length: int, at: Array) -> Taps:
    below = np.floor(at)
    share = (at - below).astype(np.float32)
    places = np.stack([np.maximum(below, 0), np.minimum(np.ceil(at), length - 1)], axis=1)
    return Taps(places.astype(np.int64), np.stack([1 - share, share], axis=1))


def _bicubic(length: int, at: Array) -> Taps:
    below = np.floor(at)
    share = np.rint((at - below) * _TABLE) / _TABLE
    weights = np.stack([_far(share), _near(share), _near(1 - share), _far(1 - share)], axis=1)
    places = below.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3)
    return _normal(places, np.where((places >= 0) & (places < length), weights, 0), length)


def _near(x: Array) -> Array:
    """Return Keys' cubic (a = -0.5) at distances up to 1."""
    near: Array = (1.5 * x - 2.5) * x * x + 1
    return near


def _far(x: Array) -> Array:
    """Return it at a distance that is 1 more."""
    y = x + 1
    far: Array = ((-0.5 * y + 2.5) * y - 4) * y + 2
    return far


def _area(length: int, number: Array, scale: np.float32) -> Taps:
    begin, end = number * scale, (number + 1) * scale
    places = np.floor(begin).astype(np.int64)[:, np.newaxis] + np.arange(ceil(scale) + 1)
    covered = np.minimum(places + 1, end[:, np.newaxis]) - np.maximum(places, begin[:, np.newaxis])
    weights = np.maximum(covered, 0) / scale
    return Taps(np.minimum(places, length - 1), weights.astype(np.float32))


def _normal(places: Array, weights: Array, length: int) -> Taps:
    """Return taps whose weights add up to 1, at places that exist."""
    sums = weights.sum(axis=1, keepdims=True)
    scaled = np.where(np.abs(sums) >= _TINY_SUM, weights / np.where(sums == 0, 1, sums), 0)
    return Taps(places.clip(0, length - 1), scaled.astype(np.float32))


def _lanczos(radius: float) -> Callable[[Array], Array]:
    def kernel(x: Array) -> Array:
        angle = np.pi * np.maximum(x, 1e-3)
        value = radius * np.sin(angle) * np.sin(angle / radius) / (angle * angle)
        return np.where(x > radius, 0, np.where(x <= 1e-3, 1, value))

    return kernel


def _gaussian(x: Array) -> Array:
    return np.where(x >= 1.5, 0, np.exp(-x * x / (2 * 0.5**2)))


def _mitchell(x: Array) -> Array:
    near = ((7 / 6) * x - 2) * x * x + 8 / 9
    far = (((-7 / 18) * x + 2) * x - 10 / 3) * x + 16 / 9
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


_KERNELS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "lanczos3": (3.0, _lanczos(3.0)),
    "lanczos5": (5.0, _lanczos(5.0)),
    "gaussian": (1.5, _gaussian),
    "mitchellcubic": (2.0, _mitchell),
}
