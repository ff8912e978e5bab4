"""`dt.random`: random tensors; names of `tf.random`. In a layer's `call` they are drawn anew at each step."""

from typing import Any

import numpy as np

from dtrain.absent_names import absent_from
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.tensors import CHANCE
from dtrain.strategies.context import set_random_seed

__all__ = ["normal", "set_seed", "uniform"]

__getattr__ = absent_from("dtrain.random", __all__)

set_seed = set_random_seed


def _rng(seed: Any) -> np.random.Generator:
    """Return the generator of the step in which a layer draws, or one that follows from numpy's."""
    drawing = CHANCE.get()
    if drawing is not None and seed is None:
        return drawing()
    return np.random.default_rng(np.random.randint(2**31) if seed is None else seed)


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = np.float32, seed: Any = None) -> Any:
    """Return numbers of a normal distribution with `mean` and `stddev`.

    Args:
        shape: of the array.
        mean: of the distribution.
        stddev: of the distribution.
        dtype: of the array.
        seed: by which the numbers are always the same; None: they follow from the step, or from `set_seed`.
    """
    drawn = _rng(seed).standard_normal(tuple(np.atleast_1d(shape).tolist()), np.float32)
    return result_of(drawn.astype(dtype) * stddev + mean)


def uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = np.float32, seed: Any = None
) -> Any:
    """Return numbers from `minval` to `maxval` (1 for floats), which is not one of them, all as likely.

    Args:
        shape: of the array.
        minval: the least number.
        maxval: the number that none reaches.
        dtype: of the array; whole numbers too.
        seed: as of `normal`.
    """
    sizes = tuple(np.atleast_1d(shape).tolist())
    if np.dtype(dtype).kind in "iu":
        return result_of(_rng(seed).integers(minval, maxval, sizes, dtype))
    high = 1 if maxval is None else maxval
    return result_of((_rng(seed).random(sizes, np.float32) * (high - minval) + minval).astype(dtype))
