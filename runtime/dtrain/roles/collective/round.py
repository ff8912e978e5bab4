"""One round of one replica: what it reads when every gradient is complete, and what it does to its slices."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from dtrain.collectives.blocks import share
from dtrain.collectives.step import Phase
from dtrain.collectives.update import BlockUpdate, work
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import Store
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.membership import Membership
from dtrain.roles.collective.rules import Orders
from dtrain.roles.collective.stock import Stock

_Anything = TypeVar("_Anything")


class Round:
    """An attempt at a step.

    Attributes:
        number: from 1.
        members: that take part, ascending.
        version: from which it starts.
        places: of the parts in their batch.
        stock: the parts, once all are complete; none in a round that the leader has made void.
        ends: whether the leader has ended training at this version.
    """

    def __init__(
        self,
        arena: Arena,
        store: Store,
        memory: BlockUpdate,
        orders: Orders,
        membership: Membership,
        *,
        number: int,
        places: Sequence[int],
    ) -> None:
        self.number = number
        self.members: Sequence[int] = membership.of(number)
        self.version = arena.board.versions[number % 2]
        self.places = places
        self.stock: Stock | None = None
        self.ends = False
        self._arena = arena
        self._board = arena.board
        self._store = store
        self._memory = memory
        self._orders = orders
        self._membership = membership
        self._limited = False
        self._limits_found = False

    @property
    def is_void(self) -> bool:
        """Whether the leader ends this round without a version; known once all have arrived."""
        return self._board.void[0] == self.number

    def is_ready(self, place: int) -> bool:
        """Return whether the part of a place is complete."""
        return self._board.ready[place] == self.number

    def is_empty(self, place: int) -> bool:
        """Return whether the part of a place is known to have no examples."""
        return self.is_ready(place) and not self._board.examples[place]

    @property
    def makes(self) -> bool:
        """Whether this round makes a version."""
        return self.stock is not None and bool(self.stock.counted) and not self.ends

    @property
    def sums(self) -> list[Sums]:
        """The sums of loss and metrics that count to the version that this round makes, in the order of the
        parts.
        """
        counted = self.stock.counted if self.stock is not None and self.makes else ()
        return [part.sums for part in counted if part.sums is not None]

    def take_stock(self, weighting: Weighting) -> list[Phase]:
        """Read the parts and the leader's orders, which nobody writes again before this replica is through.

        Returns:
            The phases of this round, before the update.
        """
        before = self._store.max_steps
        self._orders.heed(self.version)
        self.ends = self._store.max_steps != before and self._store.max_steps == self.version
        self.stock = stock = Stock(self._arena, [] if self.is_void else self.places)
        given = stock.contributions(weighting, self.version)
        self._memory.contributions = replace(given, means=self._arena.means or None)
        self._limited = self.makes and not self._store.optimizer.elementwise
        return [Phase.SQUARES] if self._limited else []

    def work(self, phase: Phase, number: int) -> None:
        """Bring a slice to the end of a phase."""
        board, memory = self._board, self._memory
        if phase is Phase.SQUARES:
            for piece in self._own(memory.pieces, number):
                memory.square(piece)
            board.squared[number] = self.number
        else:
            self._update(number)
            if number == 0:
                if self.is_void:
                    self._orders.carry_out()
                self._prepare_next()
            board.fin[number] = self.number

    def _update(self, number: int) -> None:
        memory = self._memory
        if not self._limits_found:
            memory.limit(limited=self._limited)
            self._limits_found = True
        own = self._own(memory.blocks, number)
        if self.makes:
            work(self._board, self.number, number, own, memory)
        elif self.ends:
            for block in own:
                memory.finalize(block)

    def _own(self, all_of_them: Sequence[_Anything], number: int) -> Sequence[_Anything]:
        own = share(len(all_of_them), len(self.members), number)
        return all_of_them[own.start : own.stop]

    def _prepare_next(self) -> None:
        """Write what the next round begins with."""
        board = self._board
        now, following = self.number % 2, (self.number + 1) % 2
        board.versions[following] = self.version + self.makes
        board.batches[following] = board.batches[now] + (not self.is_void)
        self._arena.put_tally(self.number + 1, self._orders.sums_after(self.version, self.sums))
        self._membership.prepare(self.number + 1, self.members)
