"""What survives every crash: the newest checkpoint of a simulated run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulation.model import State

from dtrain.messages import Lineage, Row
from dtrain.protocol.applied_batches import Contents
from dtrain.protocol.part_dealer import NOTHING_DEALT, Dealt
from dtrain.protocol.tally import Open


@dataclass(frozen=True)
class Saved:
    """A checkpoint: of each server what it holds and its table of seen pushes.

    Attributes:
        term: in which it was taken; 0 for one that begins a call of `fit`.
        tally, history: the sums of epochs that have not ended, and by call of `fit` the numbers of those that have.
        contents: which batches each server's state contains, where not all contain the same.
    """

    generation: int
    version: int
    states: Sequence[State]
    seen: Sequence[list[tuple[str, int, int]]]
    lineage: Lineage
    dealt: Dealt = NOTHING_DEALT
    final: bool = False
    term: int = 0
    tally: Open = ()
    history: Mapping[int, Mapping[int, Row]] = field(default_factory=dict)
    contents: Sequence[Contents] = ()

    def version_of(self, server: int) -> int:
        """How many updates a server's state has had."""
        return self.contents[server].version if self.contents else self.version


@dataclass
class Disk:
    """Keeps the newest."""

    newest: Saved | None = None

    @property
    def generation(self) -> int:
        """Of the newest checkpoint; 0 without one."""
        return self.newest.generation if self.newest else 0
