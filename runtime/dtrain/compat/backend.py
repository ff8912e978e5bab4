"""`dt.backend`: small functions of `tf.keras.backend`, which read and set values and tell of numbers."""

from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.losses.loss import EPSILON

__all__ = ["clear_session", "epsilon", "floatx", "get_value", "image_data_format", "set_value"]


def get_value(x: Any) -> Any:
    """Return the value of a variable, of `optimizer.lr` or of a result, as numpy has it.

    Args:
        x: the variable or result.
    """
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def set_value(x: Any, value: Any) -> None:
    """Assign a value to a variable or to `optimizer.lr`.

    Args:
        x: the variable.
        value: a number or an array of its shape.

    Raises:
        SpecError: it is none.
    """
    if not hasattr(x, "assign"):
        raise SpecError(f"set_value: expected a variable, such as layer.kernel or optimizer.lr, found {x!r}")
    x.assign(value)


def clear_session() -> None:
    """Do nothing: dtrain numbers layers within each model, and Python frees a model without references."""


def epsilon() -> float:
    """Return the number by which probabilities are kept off 0 and 1."""
    return EPSILON


def floatx() -> str:
    """Return the name of the numbers in which models compute."""
    return "float32"


def image_data_format() -> str:
    """Return which axis of images has the channels."""
    return "channels_last"
