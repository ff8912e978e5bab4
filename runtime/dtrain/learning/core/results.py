"""Numbers and arrays that a program has asked for, with the `numpy()` of TensorFlow's tensors.

They are numpy's own numbers and arrays, and arithmetic gives what numpy gives. Training makes none of them.
"""

from numbers import Real
from typing import Any

import numpy as np

from dtrain.types import Array


class ResultArray(np.ndarray):
    """An array with `numpy()`, as `tf.Tensor` has it."""

    def numpy(self) -> Array:
        """Return the same values as a plain array."""
        return self.view(np.ndarray)

    def __getitem__(self, key: Any) -> Any:
        """Return a part of it; one number has `numpy()` too."""
        part = super().__getitem__(key)
        return _NUMBERS.get(type(part), lambda found: found)(part)


class ResultNumber(np.float32):
    """A float32 number with `numpy()`."""

    def numpy(self) -> Any:
        """Return the same value as numpy's own number."""
        return self.dtype.type(self)


class ResultInt32(np.int32):
    """An int32 number with `numpy()`."""

    numpy = ResultNumber.numpy


class ResultInt64(np.int64):
    """An int64 number with `numpy()`."""

    numpy = ResultNumber.numpy


_NUMBERS: dict[type, Any] = {np.float32: ResultNumber, np.int32: ResultInt32, np.int64: ResultInt64}


class ResultFloat(float):
    """A Python float with `numpy()`, for sums that are kept in float64."""

    shape: tuple[int, ...] = ()
    dtype = np.dtype(np.float32)

    def numpy(self) -> Any:
        """Return it as numpy's float32, which a scalar of Keras is."""
        return np.float32(self)


class Rate(ResultFloat):
    """The learning rate of an optimizer, which can be read and assigned as a variable of Keras."""

    optimizer: Any

    value = ResultFloat.numpy
    read_value = ResultFloat.numpy

    def assign(self, value: Any) -> Any:
        """Give the optimizer another rate from the next step on, and return it."""
        self.optimizer.learning_rate = float(value)
        return self.optimizer.learning_rate


class RateOf:
    """The attribute `learning_rate` of optimizers, which keep a plain number, or a schedule."""

    def __init__(self, default: float) -> None:
        self.default = default

    def __get__(self, optimizer: Any, owner: type) -> Any:
        if optimizer is None:
            return self.default
        value = vars(optimizer)["learning_rate"]
        if not isinstance(value, Real):
            return value
        rate = Rate(value)
        rate.optimizer = optimizer
        return rate

    def __set__(self, optimizer: Any, value: Any) -> None:
        vars(optimizer)["learning_rate"] = float(value) if isinstance(value, float) else value


def result_of(value: Any) -> Any:
    """Return arrays and numbers, also those in lists, tuples and dicts, as such results; others stay."""
    if isinstance(value, np.ndarray):
        return value.view(ResultArray) if value.ndim else result_of(value[()])
    if isinstance(value, dict):
        return {key: result_of(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(result_of, value))
    if isinstance(value, np.generic) and type(value) in _NUMBERS:
        return _NUMBERS[type(value)](value)
    return ResultFloat(value) if isinstance(value, float) else value
