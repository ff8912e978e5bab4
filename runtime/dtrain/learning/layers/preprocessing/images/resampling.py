"""Images of another size, as `tf.image.resize` computes them: each axis by itself, of weighted neighbours."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np

from dtrain.types import Array

METHODS = (
    *("bilinear", "nearest", "bicubic", "area"),
    *("lanczos3", "lanczos5", "gaussian", "mitchellcubic"),
)
_TABLE = 1024
"""Steps into which TensorFlow divides the distance of two pixels for bicubic weights."""
_TINY_SUM = 1000 * np.finfo(np.float32).tiny


class Taps(NamedTuple):
    """For each pixel of an axis that is made: which of the given ones it reads, and with which weights."""

    places: Array
    weights: Array


def resized(x: Array, height: int, width: int, method: str) -> Array:
    """Return images [batch, height, width, channels] of the new size."""
    return _along(_along(x, 1, height, method), 2, width, method)


def resized_back(dy: Array, height: int, width: int, method: str) -> Array:
    """Return the gradient by the images, which had this height and width."""
    for axis, length in ((1, height), (2, width)):
        taps = taps_of(length, dy.shape[axis], method)
        matrix = np.zeros((len(taps.places), length), np.float32)
        rows = np.broadcast_to(np.arange(len(matrix))[:, np.newaxis], taps.places.shape)
        np.add.at(matrix, (rows, taps.places), taps.weights)
        dy = np.moveaxis(np.tensordot(dy, matrix, (axis, 0)), -1, axis)
    return np.ascontiguousarray(dy)


def window_of_aspect(height: int, width: int, new_height: int, new_width: int) -> tuple[slice, slice]:
    """Return the largest centred window that has the aspect of the new size."""
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
    """Return the taps from an axis of `length` to one of `new` pixels."""
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
