"""APIs under the names that TensorFlow users look for: the Estimator, `tf.keras.models`, `tf.compat.v1`."""

from importlib import import_module
from typing import Any

__all__ = ["v1"]


def __getattr__(name: str) -> Any:
    if name == "v1":
        return import_module("dtrain.compat.v1")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has v1", name=name)
