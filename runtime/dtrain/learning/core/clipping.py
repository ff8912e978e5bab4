"""Clipping of gradients by value, by norm and by their global norm, as tf.clip_by_*.

A gradient is an array, `SparseRows`, or None (the loss does not depend on the variable), and keeps its kind.
Norms of `SparseRows` are taken over the rows as they stand, duplicates not added up, as in TensorFlow. Arrays
that need no change are returned as they are.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.types import Array

Gradient = Array | SparseRows


PIECE_ELEMENTS = 8192
"""Elements whose squares are added up in one call: so few that BLAS uses one thread, so that
their sum has the same bits in every process.
"""


def squared_norm(gradient: Gradient | None) -> float:
    """Return the sum of squares: of each piece in the gradient's precision, of the pieces in their order."""
    if gradient is None:
        return 0.0
    flat = np.ascontiguousarray(_dense_part(gradient)).reshape(-1)
    pieces = (flat[start : start + PIECE_ELEMENTS] for start in range(0, flat.size, PIECE_ELEMENTS))
    return sum(map(squared_norm_of_piece, pieces), 0.0)


def squared_norm_of_piece(piece: Array) -> float:
    return float(np.dot(piece, piece))


def global_norm(gradients: Iterable[Gradient | None]) -> float:
    return math.sqrt(sum(squared_norm(gradient) for gradient in gradients))


def clip_by_global_norm(
    gradients: Sequence[Gradient | None], clip_norm: float
) -> tuple[list[Gradient | None], float]:
    """Return the gradients and their norm before clipping; if that is not finite, every gradient is NaN."""
    norm = global_norm(gradients)
    factor = global_clip_factor(norm, clip_norm)
    return [None if gradient is None else scaled(gradient, factor) for gradient in gradients], norm


def global_clip_factor(norm: float, clip_norm: float) -> float:
    if not math.isfinite(norm):
        return math.nan
    return 1.0 if norm <= clip_norm else clip_norm / norm


def clip_by_norm(gradient: Gradient, clip_norm: float) -> Gradient:
    return scaled(gradient, clip_factor(math.sqrt(squared_norm(gradient)), clip_norm))


def clip_factor(norm: float, clip_norm: float) -> float:
    return 1.0 if norm <= clip_norm else clip_norm / norm


def clip_by_value(gradient: Gradient, minimum: float, maximum: float) -> Gradient:
    """Limit every element to [minimum, maximum]; NaN stays NaN."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.ids, np.clip(gradient.rows, minimum, maximum))
    return np.asarray(np.clip(gradient, minimum, maximum))


def scaled(gradient: Gradient, factor: float) -> Gradient:
    """Return the gradient times `factor`; the same object where the factor is 1."""
    if factor == 1.0:
        return gradient
    part = _dense_part(gradient)
    with np.errstate(invalid="ignore"):  # infinity times 0 is NaN, as in TensorFlow
        product: Array = part * part.dtype.type(factor)
    return SparseRows(gradient.ids, product) if isinstance(gradient, SparseRows) else product


def _dense_part(gradient: Gradient) -> Array:
    return gradient.rows if isinstance(gradient, SparseRows) else gradient
