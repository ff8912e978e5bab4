"""The state of an optimizer, which a file keeps and the next `fit` takes up."""

from collections.abc import Mapping
from dataclasses import dataclass

from dtrain.types import Arrays


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer's state: `slots` by slot name and variable, and `step`, the number of updates made."""

    step: int
    slots: Mapping[str, Arrays]
