"""What survives every crash: the newest checkpoint of a simulated run."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.protocol.batch_dealer import NOTHING_DEALT, Dealt
from simulation.model import State

from dtrain.messages import Lineage


@dataclass(frozen=True)
class Saved:
    """A checkpoint: of each server what it holds and its table of seen pushes."""

    generation: int
    version: int
    states: Sequence[State]
    seen: Sequence[list[tuple[str, int, int]]]
    lineage: Lineage
    dealt: Dealt = NOTHING_DEALT
    final: bool = False


@dataclass
class Disk:
    """Keeps the newest."""

    newest: Saved | None = None

    @property
    def generation(self) -> int:
        """Of the newest checkpoint; 0 without one."""
        return self.newest.generation if self.newest else 0
