"""`dt.compat.v1`: names of TensorFlow 1 that Estimator programs use; all other names are those of `dt`.

    import dtrain.compat.v1 as tf1

Source: `tf.compat.v1`.
"""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from dtrain.absent_names import hint
from dtrain.learning.core import initializers

_INITIALIZERS = tuple(
    f"{name}_initializer"
    for name in ("constant", "ones", "random_normal", "random_uniform", "truncated_normal", "zeros")
)
_MODULES = ("estimator", "layers", "losses", "metrics", "train")

__all__ = ["GraphKeys", "control_dependencies", "get_collection", *_INITIALIZERS, *_MODULES]


class GraphKeys:
    """Names of collections; see `tf.compat.v1.GraphKeys`."""

    UPDATE_OPS = "update_ops"


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """Return an empty list: layers move their averages by themselves. See `tf.compat.v1.get_collection`.

    Args:
        key: the name of a collection.
        scope: without effect.
    """
    return []


def control_dependencies(control_inputs: Any) -> AbstractContextManager[None]:
    """Return a context without effect: there are no operations to wait for.

    Args:
        control_inputs: what would have to be done before, such as `get_collection` returns.
    """
    return nullcontext()


def __getattr__(name: str) -> Any:
    if name == "estimator":
        return import_module("dtrain.compat.estimator")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _INITIALIZERS:
        return getattr(initializers, name.removesuffix("_initializer").title().replace("_", ""))
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    dtrain = import_module("dtrain")
    if name in dtrain.__all__:
        return getattr(dtrain, name)
    use = hint(__name__, name, __all__) or hint("dtrain", name, dtrain.__all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{use}", name=name)
