"""The kinds of data that `fit`, `evaluate` and `predict` take."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.node import INFINITE, UNKNOWN
from dtrain.data.prefetching.tuning import size_bytes
from dtrain.data.sources import ReadOnce
from dtrain.data.structure import arrays_of, as_arrays, map_arrays
from dtrain.errors import InputError

NAMES = ("x", "y", "sample_weight")
ARRAYS = (Mapping, list, tuple, str, bytes)
GENERATOR_BYTES_MAX = 1 << 30
"""Bytes of batches that are kept of a generator, whose number is unknown."""

Data = Any
"""Arrays (`x`, `(x, y)` or `(x, y, sample_weight)`), a Dataset, a function of an InputContext that returns a
Dataset, an object with `__len__` and `__getitem__` of batches by number, as `dt.utils.Sequence`, or an
iterator of batches, such as a generator object.

In the place of an array there may be a dict or list of arrays, for a model with several inputs or outputs."""


def as_dataset(
    data: Data,
    batch_size: int = 32,
    shuffle: bool = False,
    seed: int = 0,
    context: InputContext | None = None,
) -> Dataset:
    """Return the argument of `fit` (see `Data`) as a Dataset of batches; Datasets are taken as they are.

    `shuffle` is for arrays and batches by number, anew in each iteration.
    """
    if isinstance(data, Dataset):
        return data
    if callable(data):
        return _made_by(data, context or InputContext())
    if isinstance(data, Iterator):
        return Dataset(ReadOnce(data, UNKNOWN))
    if (
        isinstance(data, Sized)
        and hasattr(data, "__getitem__")
        and not isinstance(data, ARRAYS)
        and not hasattr(data, "__array__")
    ):
        dataset = Dataset.random_access(data)
        return dataset.shuffle(max(1, len(data)), seed=seed) if shuffle else dataset
    check_lengths(data)
    dataset = Dataset.from_tensor_slices(_lists_as_tuples((data,) if isinstance(data, list) else data))
    if shuffle:
        dataset = dataset.shuffle(max(1, len(dataset)), seed=seed)
    return dataset.batch(batch_size)


def all_or_stepwise(batches: Iterator[Any], *, stepwise: bool) -> Dataset:
    """Return the batches that a generator object still has, each read as a step needs it.

    Unless `stepwise`, all are read now, because their number says where an epoch ends; an `InputError` says
    that they take more than GENERATOR_BYTES_MAX.
    """
    if stepwise:
        return Dataset(ReadOnce(batches, INFINITE))
    kept: list[Any] = []
    left_bytes = GENERATOR_BYTES_MAX
    for batch in batches:
        kept.append(map_arrays(np.array, as_arrays(batch)))  # copies: it may fill the same arrays anew
        left_bytes -= size_bytes(kept[-1])
        if left_bytes < 0:
            raise InputError(
                f"data: found a generator of more than {GENERATOR_BYTES_MAX >> 20} MiB, or without end; "
                "expected steps_per_epoch, or dtrain.data.Dataset.from_generator"
            )
    return Dataset.random_access(kept)


def _made_by(function: Callable[..., Any], context: InputContext) -> Dataset:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind(context)
    except TypeError:
        raise InputError(_unfit(name, f"{name}{inspect.signature(function)}")) from None
    except ValueError:
        pass  # a builtin may have no signature
    made = function(context)
    if not isinstance(made, Dataset):
        raise InputError(_unfit(name, f"that {name} returned {type(made).__name__}"))
    return made


def _unfit(name: str, found: str) -> str:
    return (
        f"data: expected a function of an InputContext that returns a dtrain.data.Dataset, found {found}; "
        f"for a function that yields examples write dtrain.data.Dataset.from_generator({name}, "
        "output_signature=...)"
    )


def check_lengths(data: Any, where: str = "data") -> None:
    """Check that x, y and sample_weight of a tuple have equally many examples; errors begin with `where`."""
    if not isinstance(data, tuple):
        return
    named = [
        (name, np.shape(array)) for name, part in zip(NAMES, data, strict=False) for array in _arrays(part)
    ]
    for name, shape in named:
        if not shape:
            raise InputError(f"{where}: expected arrays with an axis of examples, found {name} of shape ()")
        if shape[0] != named[0][1][0]:
            found = f"{named[0][0]} of shape {named[0][1]} and {name} of shape {shape}"
            raise InputError(
                f"{where}: expected as many examples in {name} as in {named[0][0]}, found {found}"
            )


def _arrays(part: Any) -> list[Any]:
    return arrays_of(as_arrays(_lists_as_tuples(part)))


def _lists_as_tuples(data: Any) -> Any:
    """Return lists of arrays as tuples, because to a Dataset a list is one array."""
    if isinstance(data, tuple):
        return tuple(_lists_as_tuples(part) for part in data)
    if isinstance(data, list) and any(isinstance(part, np.ndarray) for part in data):
        return tuple(data)
    return data
