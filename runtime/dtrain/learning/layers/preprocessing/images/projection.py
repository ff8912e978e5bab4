"""Images under an affine map, as `ImageProjectiveTransformV3` of TensorFlow computes them."""

from collections.abc import Callable, Iterator

import numpy as np

from dtrain.types import Array

INTERPOLATIONS = ("bilinear", "nearest")
_ONE = np.float32(1)


def projected(x: Array, maps: Array, fill_mode: str, interpolation: str, fill_value: float) -> Array:
    """Return images of which each pixel (x, y) is read at (a x + b y + c, d x + e y + f).

    Args:
        x: images [batch, height, width, channels].
        maps: a to f of each image, float32.
        fill_mode: what lies outside: one of `FILL_MODES`.
        interpolation: one of `INTERPOLATIONS`.
        fill_value: what ``constant`` has outside.
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
    """Return the gradient by the images."""
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


def _as_it_is(x: Array, length: int) -> Array:
    return x


FILL_MODES: dict[str, Callable[[Array, int], Array]] = {
    "reflect": _reflected,
    "wrap": _wrapped,
    "constant": _as_it_is,
    "nearest": _limited,
}
