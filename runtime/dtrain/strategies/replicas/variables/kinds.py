"""How copies of a variable become one value, and with which value and dtype they begin."""

from enum import Enum
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array


class VariableAggregation(Enum):
    """How the values that replicas assign become one; see `tf.VariableAggregation`."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableSynchronization(Enum):
    """When copies become equal; see `tf.VariableSynchronization`. AUTO and NONE are ON_WRITE here."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


def first_value(given: Any, dtype: Any) -> Array:
    """Return an initial value as a new array; of Python numbers float32 or int32."""
    value = given() if callable(given) and not hasattr(given, "__array__") else given
    if value is None:
        raise InputError("Variable: expected an initial value, found None")
    array = np.array(value, dtype, order="C")
    if dtype is None and not hasattr(value, "dtype") and array.dtype in (np.float64, np.int64):
        array = array.astype(np.float32 if array.dtype == np.float64 else np.int32)
    return array
