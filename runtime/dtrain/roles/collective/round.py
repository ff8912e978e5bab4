"""One round of one replica: its members, the gradients that are given, and the work on its slices.

The rule *Members* (docs/design/collectives.md#members). The owner or successor of slice 0 writes who takes
part in the next round. Where too few are left and the spec says to wait, the lowest live member adds those
who come.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.collectives.board import Board, bits, ranks_in
from dtrain.collectives.step import Phase, share, successor, through_phase
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import TwoSidedStore
from dtrain.parameters.updater import Contributions, run_here
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


class SliceWork:
    """The slices of the step that is begun, as one process works on them.

    A slice may be taken through a phase several times.
    """

    def __init__(self, store: TwoSidedStore) -> None:
        self._store = store

    def begin(self, given: Contributions, side: int | None = None) -> list[Phase]:
        """Begin a step from `given.version`, on a side of the memory; return its phases before the update."""
        if side is None:
            self._store.stand_at(given.version)
            self._updater = updater = self._store.begin(given)
        else:
            self._updater = updater = self._store.begin_beside(given, side)
        self._limits_found = not updater.limited
        return [
            *([Phase.SQUARES] if updater.limited else ()),
            *([Phase.ROWS] if updater.beside else ()),
        ]

    def work(self, phase: Phase, number: int, slices: int) -> None:
        """Take one of so many slices through a phase, from its beginning."""
        updater = self._updater
        if phase is Phase.SQUARES:
            self._do(updater.square, updater.pieces, number, slices)
            return
        if not self._limits_found:
            updater.limit()
            self._limits_found = True
        if phase is Phase.ROWS:
            self._do(updater.make, updater.beside, number, slices)
        else:
            self._do(updater.make, updater.blocks, number, slices)
            if updater.beside:
                self._do(updater.carry, updater.beside, number, slices)

    def complete(self, number: int, slices: int) -> None:
        """Complete one of so many slices of the present version, with which training ends."""
        self._do(self._updater.finalize, self._updater.blocks, number, slices)

    def _do(self, do: Callable[[Any], None], blocks: Sequence[Any], number: int, slices: int) -> None:
        own = share(len(blocks), slices, number)
        run_here(do, blocks[own.start : own.stop])


class Round:
    """An attempt at a step.

    Attributes:
        stock: the parts, once all are complete; none in a round that the leader has made void.
        ends: whether the leader has ended training at this version.
    """

    def __init__(
        self,
        arena: Arena,
        store: TwoSidedStore,
        work: SliceWork,
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
        self._work = work
        self._orders = orders
        self._membership = membership

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
        if not self.makes:
            return self._work.begin(Contributions((), 0, None, self.version))
        given = stock.contributions(weighting, self.version)
        return self._work.begin(replace(given, means=self._arena.means or None))

    def work(self, phase: Phase, number: int) -> None:
        slices = len(self.members)
        if self.makes:
            self._work.work(phase, number, slices)
        elif self.ends:
            self._work.complete(number, slices)
        if phase is Phase.UPDATE and number == 0:
            if self.is_void:
                self._orders.carry_out()
            self._prepare_next()
        through_phase(self._board, phase)[number] = self.number

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
