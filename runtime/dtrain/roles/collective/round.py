"""The work on the slices of a step that one process does, and the gradients of a step with backups."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dtrain.collectives.all_reduce import ElementRange
from dtrain.collectives.step import Phase, share
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import TwoSidedStore
from dtrain.parameters.updater import Contributions, run_here
from dtrain.roles.collective.arena import Arena


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

    def spans(self, number: int, slices: int) -> dict[int, ElementRange]:
        """Return the elements of one of so many slices, by the number of their group."""
        blocks = self._store.updater.dense
        own = share(len(blocks), slices, number)
        spans: dict[int, ElementRange] = {}
        for block in blocks[own.start : own.stop]:
            start = spans[block.part].start if block.part in spans else block.start
            spans[block.part] = ElementRange(start, block.stop)
        return spans

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
