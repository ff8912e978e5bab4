"""The processes whose replicas read a distributed dataset together, seen from one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.data.input_context import InputContext
from dtrain.runs.self_report.activity import NO_ACTIVITY, Activity
from dtrain.strategies.reduction import ReduceOp
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.values import PerReplica


@dataclass
class InputWorkers:
    """All workers of a strategy: processes that read, each for its own replicas.

    Attributes:
        workers: how many there are.
        index: the number of this one.
        replicas: how many replicas each of them has.
        reduce: `Strategy.reduce`, for what the workers agree on; None where there is nothing to agree on.
        per_replica: whether a function makes a dataset for each replica. As in TensorFlow it stays so once it
            was asked for.
        activity: told of each batch that is read.
    """

    workers: int = 1
    index: int = 0
    replicas: int = 1
    reduce: Callable[[ReduceOp, Any, None], Any] | None = None
    per_replica: bool = False
    activity: Activity = NO_ACTIVITY

    @classmethod
    def of(cls, loops: Loops) -> "InputWorkers":
        """Return those of a strategy whose replicas run functions of a program."""
        workers = loops.num_replicas_in_sync // loops.replicas
        return cls(workers, loops.first // loops.replicas, loops.replicas, loops.reduce)

    @property
    def several(self) -> bool:
        """Whether there are several workers."""
        return self.workers > 1

    @property
    def wraps(self) -> bool:
        """Whether an element is `PerReplica`, and not the only replica's batch itself."""
        return self.several or self.replicas > 1

    @property
    def context(self) -> InputContext:
        """The place of this worker."""
        return InputContext(self.workers, self.index, self.workers * self.replicas)

    @property
    def contexts_of_pipelines(self) -> list[InputContext]:
        """The place of each pipeline of this worker: one, or one for each replica."""
        if not self.per_replica:
            return [self.context]
        total = self.workers * self.replicas
        first = self.index * self.replicas
        return [InputContext(total, first + replica, total) for replica in range(self.replicas)]

    def total(self, count: int) -> int:
        """Return the sum over all workers; each gives how many of its replicas have data.

        All workers call it the same number of times, and wait for each other.
        """
        if self.reduce is None or not self.several:
            return count
        shares: list[Any] = [np.int64(count), *[np.int64(0)] * (self.replicas - 1)]
        return int(self.reduce(ReduceOp.SUM, PerReplica(shares), None))
