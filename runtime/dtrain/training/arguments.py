"""Arguments of `fit` as users of Keras write them: put into one form, or refused with the remedy."""

import warnings
from collections.abc import Mapping
from typing import Any

from dtrain.errors import InputError
from dtrain.training.batches import Batches


def as_pair(validation_data: Any) -> Any:
    """Return validation data with a list ``[x, y]`` or ``[x, y, sample_weight]`` as a tuple, as Keras takes it."""
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
        raise InputError(f"{what}: the dataset is infinite; expected {argument}, the number of batches to take")


def warn_of_repetition(batches: Batches, steps_per_epoch: int) -> None:
    """Warn, at the caller's caller, of an epoch with more steps than the data have batches.

    Keras warns as well, and ends training there.
    """
    if batches.count is not None and steps_per_epoch > batches.count:
        warnings.warn(
            f"fit: an epoch of {steps_per_epoch} steps needs {steps_per_epoch} batches and the data have {batches.count}: "
            "they are read again from the start; without steps_per_epoch an epoch ends with the data, "
            "and Dataset.repeat() says that this is meant",
            stacklevel=3,
        )
