"""The state of an optimizer, which a file keeps and the next `fit` takes up."""

from collections.abc import Mapping
from dataclasses import dataclass

from dtrain.types import Arrays


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer for the variables of a model.

    Attributes:
        step: the number of updates made.
        slots: by slot name, then by variable.
    """

    step: int
    slots: Mapping[str, Arrays]
