"""`dt.random`: random tensors; names of `tf.random`. In a layer's `call` they are drawn anew at each step."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dtrain.absent_names import absent_from
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.tensors import CHANCE, names_of


class _Seeded:
    """The generator of a program's own draws, the same in every process."""

    rng = np.random.default_rng(0)


def set_seed(seed: int) -> None:
    """Let the numbers that this process draws follow from `seed`; those of tasks are then equal."""
    _Seeded.rng = np.random.default_rng(seed)


def _rng(seed: Any) -> np.random.Generator:
    """Return the generator of the step in which a layer draws, or that of the program."""
    if seed is not None:
        return np.random.default_rng(seed)
    drawing = CHANCE.get()
    return _Seeded.rng if drawing is None else drawing()


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = np.float32, seed: Any = None) -> Any:
    """Return numbers of this `shape` and `dtype`, of a normal distribution with `mean` and `stddev`.

    With `seed` they follow from it alone.
    """
    drawn = _rng(seed).standard_normal(tuple(np.atleast_1d(shape).tolist()), np.float32).astype(dtype)
    return result_of(drawn * stddev + mean)


def uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = np.float32, seed: Any = None
) -> Any:
    """Return numbers of this `shape` and `dtype`, all as likely, from `minval` to below `maxval`.

    For floats that is 1 by default. With `seed` they follow from it alone.
    """
    sizes = tuple(np.atleast_1d(shape).tolist())
    if np.dtype(dtype).kind in "iu":
        return result_of(_rng(seed).integers(minval, maxval, sizes, dtype))
    high = 1 if maxval is None else maxval
    return result_of((_rng(seed).random(sizes, np.float32) * (high - minval) + minval).astype(dtype))


__all__ = names_of(__name__)

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.random", __all__)
