"""Arguments of `fit` in the forms that users of Keras write: put into one form, or refused with a remedy."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain.data.dataset import Dataset
from dtrain.data.node import Iteration, Node, OneSource
from dtrain.data.structure import Element
from dtrain.data.user_data import check_lengths
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import Losses
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches
from dtrain.training.parts import Batch
from dtrain.training.steps import EvaluationStep


def joined(x: Any, y: Any, sample_weight: Any) -> Any:
    """Return Keras's three arguments as one value: ``fit((x, y))`` and ``fit(x, y)`` mean the same."""
    if y is None and sample_weight is None:
        return x
    if isinstance(x, Dataset) or callable(x):
        raise InputError(
            "data: a Dataset or a function brings its own targets and weights; give no y or sample_weight "
            "beside it"
        )
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def held_out(data: Any, fraction: float) -> tuple[Any, Any]:
    """Return arrays to train on and, from their end, arrays to validate on: Keras's `validation_split`."""
    if isinstance(data, Dataset) or callable(data):
        raise InputError(
            "validation_split: expected arrays; a Dataset or a function is split with take and skip"
        )
    if not (isinstance(data, Mapping | list | tuple) or hasattr(data, "__array__")):
        raise InputError(
            f"validation_split: can only split arrays, found a {type(data).__name__}; give validation_data"
        )
    check_lengths(data)
    size = Batch.of(data).size
    cut = int(size * (1 - fraction))
    if not 0 < cut < size:
        raise InputError(
            f"validation_split: expected a fraction that leaves examples on both sides of {size}, found "
            f"{fraction}"
        )
    return _rows(data, slice(cut)), _rows(data, slice(cut, None))


def _rows(data: Any, rows: slice) -> Any:
    if isinstance(data, Mapping):
        return {key: _rows(part, rows) for key, part in data.items()}
    if isinstance(data, tuple) or (
        isinstance(data, list) and all(isinstance(part, np.ndarray) for part in data)
    ):
        return type(data)(_rows(part, rows) for part in data)
    return np.asarray(data)[rows]


def check_class_weight(class_weight: Any) -> None:
    """Raise an `InputError` unless class weights are a mapping; scikit-learn's "balanced" is none."""
    if class_weight is not None and not isinstance(class_weight, Mapping):
        expected = "a mapping of class numbers to weights such as {0: 1.0, 1: 2.5}"
        raise InputError(f"class_weight: expected {expected}, found {class_weight!r}")


def check_finite(batches: Batches, steps: int | None, what: str, argument: str) -> None:
    """Raise an `InputError` if a pass over the data has no end.

    `what` is the noun for the data, `argument` the name of the argument that limits the number of batches.
    """
    if steps is None and batches.infinite:
        raise InputError(
            f"{what}: the dataset is infinite; expected {argument}, the number of batches to take"
        )


def check_example(model: Architecture, losses: Losses | None, batches: Batches, what: str) -> None:
    """Raise an `InputError` if the first example, if cheap to get, does not fit the model and its losses."""
    if not model.has_layers or any(spec.sparse for spec in model.created_variables):
        return
    if (example := batches.one_example()) is None:
        return
    try:
        EvaluationStep(model, losses, example, model.arrays).compute_loss()
    except InputError:
        try:  # this error names the shapes that the user knows
            EvaluationStep(model, losses, batches.first(), model.arrays).compute_loss()
        except InputError as error:
            raise InputError(f"{what}: {error}") from None


def told_of_repetition(batches: Batches, steps_per_epoch: int) -> Batches:
    """Return the data, with a warning if an epoch has more steps than they have batches.

    Keras warns as well, and ends training there. The warning comes at once, or when reading reaches the end
    of the data; it is attributed to the caller's caller.
    """
    if batches.infinite:
        return batches
    if batches.count is None:
        return replace(batches, dataset=Dataset(_Watched(batches.dataset.node, steps_per_epoch)))
    if steps_per_epoch > batches.count:
        warnings.warn(_repetition(steps_per_epoch, batches.count), stacklevel=3)
    return batches


def _repetition(steps: int, batches: int) -> str:
    return (
        f"fit: an epoch of {steps} steps needs {steps} batches and the data have {batches}: they are read "
        "again from the start; "
        "without steps_per_epoch an epoch ends with data of known length, and Dataset.repeat() says that "
        "this is meant"
    )


class _Watched(OneSource):
    """A dataset whose number of batches is known only once it has been read."""

    def __init__(self, source: Node, steps_per_epoch: int) -> None:
        super().__init__(source)
        self._steps_per_epoch = steps_per_epoch

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        count = 0
        for element in self._source.iterate(iteration):
            count += 1
            yield element
        if 0 < count < self._steps_per_epoch:
            warnings.warn(_repetition(self._steps_per_epoch, count), stacklevel=2)
