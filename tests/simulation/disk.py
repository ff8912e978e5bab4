"""What survives every crash: the newest checkpoint of a simulated run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.model import Model, State

from dtrain.messages import Lineage, Row
from dtrain.protocol.applied_batches import Contents
from dtrain.protocol.part_dealer import NOTHING_DEALT, Dealt
from dtrain.protocol.tally import Open


@dataclass(frozen=True)
class Saved:
    """A checkpoint: of each server what it holds and its table of seen pushes.

    Attributes:
        optimizer: the rule in force.
        tally, history: the sums of epochs that have not ended, and by call of `fit` the numbers of those that
            have.
        start: whether it begins a call of `fit`.
        contents: which batches each server's state contains, where not all contain the same.
    """

    generation: int
    version: int
    states: Sequence[State]
    seen: Sequence[list[tuple[str, int, int]]]
    lineage: Lineage
    optimizer: Mapping[str, Any]
    dealt: Dealt = NOTHING_DEALT
    final: bool = False
    tally: Open = ()
    history: Mapping[int, Mapping[int, Row]] = field(default_factory=dict)
    start: bool = False
    contents: Sequence[Contents] = ()

    def version_of(self, server: int) -> int:
        """How many updates a server's state has had."""
        return self.contents[server].version if self.contents else self.version

    def on(self, before: Model, after: Model) -> "Saved":
        """The same checkpoint, read by a run with other servers."""
        states = after.laid_out(before.whole(self.states))
        same = before.plan.servers == after.plan.servers
        return replace(self, states=states, seen=self.seen if same else [[]] * len(states))


@dataclass
class Disk:
    """Keeps the newest, and the newest of which all servers contain the same; `look` sees everything that is
    written.
    """

    newest: Saved | None = None
    whole: Saved | None = None
    look: Callable[[Saved], None] = lambda saved: None

    def write(self, saved: Saved) -> None:
        self.newest = saved
        self.whole = self.whole if saved.contents else saved
        self.look(saved)

    def move(self, before: Model, after: Model) -> None:
        """Let a run with other servers go on from here: from the newest that is no mixture there."""
        newest = self.newest if before.plan.servers == after.plan.servers else self.whole
        self.newest = newest and newest.on(before, after)
        self.whole = self.newest if self.newest and not self.newest.contents else None

    @property
    def generation(self) -> int:
        """Of the newest checkpoint; 0 without one."""
        return self.newest.generation if self.newest else 0
