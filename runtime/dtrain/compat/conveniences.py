"""`dt.utils`: labels, sequences, folders and arrays as data, seeds, custom objects, as `tf.keras.utils`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dtrain.absent_names import absent_from
from dtrain.data import dataset_creator as experimental
from dtrain.data.encoding import Sequence, normalize, pad_sequences, to_categorical
from dtrain.learning.core.configuration import REGISTERED
from dtrain.strategies.context import set_random_seed

if TYPE_CHECKING:
    from dtrain.data.image_folders import image_dataset_from_directory
    from dtrain.data.keras_sources import (
        split_dataset,
        text_dataset_from_directory,
        timeseries_dataset_from_array,
    )
    from dtrain.learning.functions.checking import check_gradients

T = TypeVar("T")

__all__ = [
    "CustomObjectScope",
    "Sequence",
    "check_gradients",
    "custom_object_scope",
    "experimental",
    "get_custom_objects",
    "image_dataset_from_directory",
    "normalize",
    "pad_sequences",
    "register_keras_serializable",
    "set_random_seed",
    "split_dataset",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from(
        "dtrain.utils",
        __all__,
        ["dtrain.data.image_folders", "dtrain.data.keras_sources", "dtrain.learning.functions.checking"],
    )


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[T], T]:
    """Return a decorator that lets files and configs name a class or function of your own.

    Args:
        package: stands before the name, as in ``Custom>MyLayer``.
        name: under which it is known; None: its own.
    """

    def register(known: Any) -> Any:
        short = name or known.__name__
        REGISTERED[f"{package}>{short}"] = REGISTERED[known.__name__] = known
        return known

    return register


def get_custom_objects() -> dict[str, Any]:
    """Return the table of registered classes and functions, by name; what is added to it is registered."""
    return REGISTERED


@contextmanager
def custom_object_scope(*objects: Mapping[str, Any]) -> Iterator[None]:
    """Let files and configs name classes of your own within a `with` block.

    Args:
        objects: classes and functions by name.
    """
    before = dict(REGISTERED)
    REGISTERED.update({key: value for each in objects for key, value in each.items()})
    try:
        yield
    finally:
        REGISTERED.clear()
        REGISTERED.update(before)


CustomObjectScope = custom_object_scope
