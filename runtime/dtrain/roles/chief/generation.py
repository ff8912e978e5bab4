"""What one call of `fit` trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtrain.config import TrainingSection
from dtrain.protocol.placement import Plan


@dataclass(frozen=True)
class Generation:
    """What one call of `fit` trains, as the servers are told.

    Attributes:
        optimizer: as the program says it.
        batches: how many this `fit` takes if none is refused or stale.
        model: its description, for checkpoints; None if it is no data.
    """

    number: int
    plan: Plan
    training: TrainingSection
    optimizer: dict[str, Any]
    max_steps: int
    batches: int
    model: Mapping[str, Any] | None = None
