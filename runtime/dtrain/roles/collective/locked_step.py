"""The work on a step with backups, once it is decided which gradients count: any replica takes slices.

A process locks a slice before it works on it, and continues from the progress that is recorded
in shared memory. So a replica that is stopped while it waits delays no other one, and the slice of a replica
that has died is completed by the next.
"""

from collections.abc import Sequence
from typing import TypeVar

from dtrain.collectives.backups import Standing
from dtrain.collectives.blocks import share
from dtrain.collectives.step import Phase
from dtrain.collectives.update import BlockUpdate, work
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import Store
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.shared_standing import SharedStanding
from dtrain.roles.collective.stock import Stock

_Anything = TypeVar("_Anything")


class LockedStep:
    """The slices of a step, as one process works on them. The lock on slice s has number s + 1.

    Attributes:
        round: whose step it is.
    """

    def __init__(
        self,
        arena: Arena,
        store: Store,
        memory: BlockUpdate,
        shared: SharedStanding,
        rank: int,
        weighting: Weighting,
    ) -> None:
        """Take part in steps; arguments as of `BackupDriver`."""
        self._arena = arena
        self._board = arena.board
        self._store = store
        self._memory = memory
        self._shared = shared
        self._rank = rank
        self._weighting = weighting
        self.round = 0
        self._slices = 0
        self._phases: list[Phase] = []
        self._limits_found = False

    def begin(self, standing: Standing) -> None:
        """Read which gradients count; they stay as they are until the step is over."""
        counted = standing.counted
        assert counted is not None, "the step is decided"
        if self.round == standing.round:
            return
        self.round = standing.round
        self._slices = min(len(counted), self._arena.shape.ranks)
        self._memory.contributions = Stock(self._arena, counted).contributions(
            self._weighting, standing.version
        )
        self._limits_found = self._store.optimizer.elementwise
        if self._limits_found:
            self._memory.limit(limited=False)
        self._phases = [Phase.UPDATE] if self._limits_found else [Phase.SQUARES, Phase.UPDATE]

    def sums(self, standing: Standing) -> list[Sums]:
        """Return the sums of loss and metrics of the gradients that count."""
        return [
            part.sums for part in Stock(self._arena, standing.counted or ()).parts if part.sums is not None
        ]

    def open(self) -> tuple[Phase, list[int]] | None:
        """Return the first phase that is not over, and its unfinished slices, this replica's own first."""
        for phase in self._phases:
            column = self._board.squared if phase is Phase.SQUARES else self._board.fin
            order = [(self._rank + each) % self._slices for each in range(self._slices)]
            left = [number for number in order if column[number] < self.round]
            if left:
                return phase, left
        return None

    def work(self) -> bool:
        """Complete the current phase of one slice that is not locked; return whether there was one."""
        found = self.open()
        if found is None:
            return False
        phase, left = found
        for number in left:
            if self._shared.take(number + 1):
                try:
                    self._bring_through(phase, number)
                finally:
                    self._shared.give_up(number + 1)
                return True
        return False

    def busy(self) -> tuple[int, ...]:
        """Return the ranks that have locked the unfinished slices."""
        found = self.open()
        return () if found is None else tuple(sorted({self._board.locked_by[each + 1] for each in found[1]}))

    def _bring_through(self, phase: Phase, number: int) -> None:
        """Work on a slice that is locked, unless its phase is over: then the step may be, too."""
        board, memory = self._board, self._memory
        if phase is Phase.SQUARES:
            if board.squared[number] < self.round:
                for piece in self._own(memory.pieces, number):
                    memory.square(piece)
                board.squared[number] = self.round
        elif board.fin[number] < self.round:
            if not self._limits_found:
                memory.limit(limited=True)
                self._limits_found = True
            work(board, self.round, number, self._own(memory.blocks, number), memory)
            board.fin[number] = self.round

    def _own(self, all_of_them: Sequence[_Anything], number: int) -> Sequence[_Anything]:
        own = share(len(all_of_them), self._slices, number)
        return all_of_them[own.start : own.stop]
