"""What counts as data for `fit`, `evaluate` and `predict`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.errors import InputError

Data = Any
"""Arrays (`x`, `(x, y)` or `(x, y, sample_weight)`), a Dataset, or a function of an InputContext that returns a Dataset.

In the place of an array there may be a dict or list of arrays, for a model with several inputs or outputs."""


def as_dataset(
    data: Data, batch_size: int = 32, shuffle: bool = False, seed: int = 0, context: InputContext | None = None
) -> Dataset:
    """What `fit` was given as a Dataset of batches.

    Args:
        data: see `Data`. Datasets are taken as they are, a function is called with `context`.
        batch_size: of arrays.
        shuffle: whether arrays are shuffled, anew in each iteration.
        seed: of the shuffling.
        context: for a function; default: that of a single replica.
    """
    if isinstance(data, Dataset):
        return data
    if callable(data):
        made = data(context or InputContext())
        if not isinstance(made, Dataset):
            raise InputError(f"data: expected the function to return a dtrain.data.Dataset, found {type(made).__name__}.")
        return made
    if isinstance(data, Iterator):
        raise InputError(
            "data: found a generator, which can be read once only; expected arrays, or a Dataset such as "
            "dtrain.data.Dataset.from_generator(function_that_makes_it, output_signature=...)"
        )
    dataset = Dataset.from_tensor_slices(_lists_as_tuples((data,) if isinstance(data, list) else data))
    if shuffle:
        dataset = dataset.shuffle(max(1, len(dataset)), seed=seed)
    return dataset.batch(batch_size)


def _lists_as_tuples(data: Any) -> Any:
    """Lists of arrays as tuples: to a Dataset a list is one array."""
    if isinstance(data, tuple):
        return tuple(_lists_as_tuples(part) for part in data)
    if isinstance(data, list) and any(isinstance(part, np.ndarray) for part in data):
        return tuple(data)
    return data
