"""Arguments of `fit` as users of Keras write them: put into one form, or refused with the remedy."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.data.node import Iteration, Node
from dtrain.data.structure import Element
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import Losses
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches
from dtrain.training.steps import EvaluationStep


def as_pair(validation_data: Any) -> Any:
    """Return validation data with a list ``[x, y]`` or ``[x, y, sample_weight]`` as a tuple, as Keras takes
    it.
    """
    return tuple(validation_data) if isinstance(validation_data, list) else validation_data


def check_class_weight(class_weight: Any) -> None:
    """See that class weights are a mapping.

    Raises:
        InputError: they are something else, such as scikit-learn's "balanced".
    """
    if class_weight is not None and not isinstance(class_weight, Mapping):
        expected = "a mapping of class numbers to weights such as {0: 1.0, 1: 2.5}"
        raise InputError(f"class_weight: expected {expected}, found {class_weight!r}")


def check_finite(batches: Batches, steps: int | None, what: str, argument: str) -> None:
    """See that a pass over the data has an end.

    Args:
        batches: the data.
        steps: how many batches are taken; None: all there are.
        what: where the data were given, for the message.
        argument: which argument says the number of batches.

    Raises:
        InputError: there is none.
    """
    if steps is None and batches.infinite:
        raise InputError(
            f"{what}: the dataset is infinite; expected {argument}, the number of batches to take"
        )


def check_example(model: Architecture, losses: Losses | None, batches: Batches, what: str) -> None:
    """See that the first example fits the model and its losses, where that costs no more than to compute it.

    Args:
        model: with all its shapes.
        losses: as compiled.
        batches: the data.
        what: where the data were given, for the message.

    Raises:
        InputError: it does not fit.
    """
    if not model.has_layers or any(spec.sparse for spec in model.created_variables):
        return
    if (example := batches.one_example()) is None:
        return
    try:
        EvaluationStep(model, losses, example, model.weights).compute_loss()
    except InputError:
        try:  # which names the shapes that the user knows
            EvaluationStep(model, losses, batches.first(), model.weights).compute_loss()
        except InputError as error:
            raise InputError(f"{what}: {error}") from None


def told_of_repetition(batches: Batches, steps_per_epoch: int) -> Batches:
    """Return the data, and warn of an epoch with more steps than they have batches: at once, or when reading
    tells.

    Keras warns as well, and ends training there. The warning is one of the caller's caller.
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


class _Watched(Node):
    """A dataset of which only reading tells how many batches it has."""

    def __init__(self, source: Node, steps_per_epoch: int) -> None:
        self._source = source
        self._steps_per_epoch = steps_per_epoch

    @property
    def spec(self) -> Any:
        """See `Node`."""
        return self._source.spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        """See `Node`; at the end of a pass warn if it was too short."""
        count = 0
        for element in self._source.iterate(iteration):
            count += 1
            yield element
        if 0 < count < self._steps_per_epoch:
            warnings.warn(_repetition(self._steps_per_epoch, count), stacklevel=2)
