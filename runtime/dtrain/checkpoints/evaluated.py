"""The weights of a checkpoint as an evaluator takes them, and the pace of evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EvaluatedCheckpoint:
    """The weights of one checkpoint.

    Attributes:
        global_step: the step that it was written at.
        weights: every variable by name; the reader owns the arrays.
        final: whether no later one will be written.
    """

    global_step: int
    weights: Mapping[str, np.ndarray[Any, Any]]
    final: bool


@dataclass(frozen=True)
class Pace:
    """The times between evaluations of checkpoints while training goes on.

    Attributes:
        start_delay_s: from the evaluator's start to its first evaluation.
        throttle_s: from the beginning of one evaluation to the next.
    """

    start_delay_s: float = 0.0
    throttle_s: float = 0.0
