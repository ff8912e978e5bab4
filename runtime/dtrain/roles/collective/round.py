"""One round of one replica: its members, the gradients that are given, and the work on its slices.

The rule *Members* (docs/design/collectives.md#members). The owner or successor of slice 0 writes who takes
part in the next round. Where too few are left and the spec says to wait, the lowest live member adds those
who come.
"""

from collections.abc import Sequence, Set
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dtrain.collectives.blocks import share
from dtrain.collectives.board import Board, bits, ranks_in
from dtrain.collectives.step import Phase, successor
from dtrain.collectives.update import BlockUpdate, Contributions, work
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import Store
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.rules import Orders
from dtrain.wire.one_host.synchronization import Doorbells


class HostMembership:
    """The members, as one of them sees and changes them."""

    def __init__(self, board: Board, doorbells: Doorbells, rank: int) -> None:
        self._board = board
        self._doorbells = doorbells
        self._rank = rank

    def publish(self) -> None:
        self._board.offered[self._rank] = bits(self._doorbells.offered)

    def of(self, number: int) -> tuple[int, ...]:
        return ranks_in(self._board.members[number % 2])

    def prepare(self, number: int, members: Sequence[int]) -> None:
        """Write the members of round `number`: the live ones of the round before, and one that waits."""
        live = [rank for rank in members if rank not in self._doorbells.dead]
        self._write(number, live, self._newcomer(members, live))

    def add(self, number: int, members: Sequence[int]) -> None:
        """Add to the members of a round that nobody has begun, if this replica is the lowest live one."""
        if successor(members, 0, self._doorbells.dead) == self._rank:
            live = [rank for rank in members if rank not in self._doorbells.dead]
            self._write(number, members, self._newcomer(members, live))

    def _newcomer(self, members: Sequence[int], live: Sequence[int]) -> list[int]:
        """Return one replica that waits and that all live members can ring, if there is any.

        A rank that is a member now, though its process is dead, must not be one for a round before its
        successor is: so everyone takes up the successor's socket.
        """
        waiting = self._board.offered[self._rank]
        for rank in live:
            waiting &= self._board.offered[rank]
        return [rank for rank in ranks_in(waiting) if rank not in members][:1]

    def _write(self, number: int, members: Sequence[int], new: Sequence[int]) -> None:
        for rank in new:
            self._board.admitted[rank] = number
        self._board.members[number % 2] = bits([*members, *new])

    def take_up(self, members: Sequence[int], known: Set[int]) -> None:
        for rank in members:
            if rank not in known and rank != self._rank:
                self._doorbells.take_up(rank)


_Anything = TypeVar("_Anything")


class Round:
    """An attempt at a step.

    Attributes:
        stock: the parts, once all are complete; none in a round that the leader has made void.
        ends: whether the leader has ended training at this version.
    """

    def __init__(
        self,
        arena: Arena,
        store: Store,
        memory: BlockUpdate,
        orders: Orders,
        membership: HostMembership,
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
        return self._board.ready[place] == self.number

    def is_empty(self, place: int) -> bool:
        return self.is_ready(place) and not self._board.examples[place]

    @property
    def makes(self) -> bool:
        return self.stock is not None and bool(self.stock.counted) and not self.ends

    @property
    def sums(self) -> list[Sums]:
        counted = self.stock.counted if self.stock is not None and self.makes else ()
        return [part.sums for part in counted if part.sums is not None]

    def take_stock(self, weighting: Weighting) -> list[Phase]:
        """Return the phases before the update. Parts and orders stay until this replica is through."""
        before = self._store.max_steps
        self._orders.heed(self.version)
        self.ends = self._store.max_steps != before and self._store.max_steps == self.version
        self.stock = stock = Stock(self._arena, [] if self.is_void else self.places)
        given = stock.contributions(weighting, self.version)
        self._memory.contributions = replace(given, means=self._arena.means or None)
        self._limited = self.makes and not self._store.optimizer.elementwise
        return [Phase.SQUARES] if self._limited else []

    def work(self, phase: Phase, number: int) -> None:
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


class PartGiven(msgspec.Struct, frozen=True):
    """A complete gradient.

    Attributes:
        examples: of how many it is the mean; 0: there is none.
    """

    place: int
    examples: int
    finite: bool
    rank: int
    sums: Sums | None

    @property
    def counts(self) -> bool:
        return self.examples > 0 and self.finite


class Stock:
    """All parts of a round. They are read before this replica has finished its slice, and so before anyone
    writes those of the next round.
    """

    def __init__(self, arena: Arena, places: Sequence[int]) -> None:
        board = arena.board
        columns = (board.examples, board.finite, board.computed_by, board.sums_nbytes)
        examples, finite, ranks, nbytes = (column.read() for column in columns)
        self._arena = arena
        self.parts = [
            PartGiven(
                place, examples[place], bool(finite[place]), ranks[place], arena.sums(place, nbytes[place])
            )
            for place in places
        ]
        self.counted = [part for part in self.parts if part.counts]
        self.refused = [part for part in self.parts if not part.finite]

    def contributions(self, weighting: Weighting, version: int) -> Contributions:
        return Contributions.of(
            [self._arena.counted(part.place) for part in self.counted],
            sum(part.examples == 0 for part in self.parts),
            [part.examples for part in self.counted] if weighting == Weighting.EXAMPLES else None,
            version,
        )
