"""Sums over the replicas of a step, within their passes forward and back."""

import numpy as np

from dtrain.errors import ProgramError
from dtrain.learning.layers.base import StepSums
from dtrain.strategies.interface import Replica, Training
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.types import Array


def sums_over(replica: Replica, weight: float) -> StepSums:
    """Return the sums over all replicas, for one of them, whose part has this weight in the step."""

    def total(array: Array) -> Array:
        return np.asarray(replica.all_reduce(ReduceOp.SUM, array))

    return StepSums(total, weight)


def check_exchange(training: Training) -> None:
    """Raise a `ProgramError` unless all replicas of a step meet within it, or there is only one."""
    if training.cut.parts > 1 and not all(replica.exchanges for replica in training.replicas):
        raise ProgramError(
            "fit: BatchNormalization(synchronized=True) needs sums over all replicas within a step; expected "
            "a strategy whose replicas compute all parts of a step at the same time (mirrored, "
            "central_storage or multi_worker_mirrored, without backup workers), found one whose replicas do "
            "not; leave out synchronized=True, or choose such a strategy"
        )
