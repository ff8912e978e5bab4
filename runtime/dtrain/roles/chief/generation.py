"""The subject of one call of `fit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtrain.config import SynchronousSection, TrainingSection
from dtrain.parameters.placement import Plan
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.feed import UNKNOWN, Feed


@dataclass(frozen=True)
class Generation:
    """The subject of one call of `fit`, as the servers are told.

    Attributes:
        optimizer: as the program says it.
        cut: how every batch is cut into parts, unless a checkpoint has begun otherwise.
        model: its description, for checkpoints; None if it is no data.
        host: the server that hosts the control plane.
        steps_per_epoch, first_epoch, alone, feed: as in `Problem`.
    """

    number: int
    plan: Plan
    training: TrainingSection
    optimizer: dict[str, Any]
    max_steps: int
    cut: BatchCut
    model: Mapping[str, Any] | None = None
    steps_per_epoch: int = 0
    first_epoch: int = 0
    alone: bool = False
    feed: Feed = UNKNOWN
    host: int = 0

    @property
    def sync(self) -> bool:
        """True if N contributions make a step."""
        return isinstance(self.training, SynchronousSection)
