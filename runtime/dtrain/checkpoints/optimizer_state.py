"""How far an optimizer has come, as a file keeps it and the next `fit` takes it up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OptimizerState:
    """How far an optimizer has come with the variables of a model.

    Attributes:
        step: updates made.
        slots: by slot name, then by variable.
    """

    step: int
    slots: Mapping[str, Mapping[str, Array]]
