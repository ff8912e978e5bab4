"""The gradients of one round, as the board describes them once all are complete."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.collectives.update import Contributions
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.roles.collective.arena import Arena


@dataclass(frozen=True)
class PartGiven:
    """A complete gradient.

    Attributes:
        place: of the part in its batch.
        examples: of how many it is the mean; 0: there is none.
        finite: whether it is free of NaN and infinity.
        rank: of the replica that has computed it.
        sums: of loss and metrics.
    """

    place: int
    examples: int
    finite: bool
    rank: int
    sums: Sums | None

    @property
    def counts(self) -> bool:
        """Whether it is part of the next version."""
        return self.examples > 0 and self.finite


class Stock:
    """All parts of a round. They are read before this replica has finished its slice, and so before anyone
    writes those of the next round.
    """

    def __init__(self, arena: Arena, places: Sequence[int]) -> None:
        board = arena.board
        self._arena = arena
        self.parts = [
            PartGiven(
                place,
                board.examples[place],
                bool(board.finite[place]),
                board.computed_by[place],
                arena.sums(place, board.sums_nbytes[place]),
            )
            for place in places
        ]
        self.counted = [part for part in self.parts if part.counts]
        self.refused = [part for part in self.parts if not part.finite]

    def contributions(self, weighting: Weighting, version: int) -> Contributions:
        """Return the gradients that make the version after this one."""
        return Contributions.of(
            [self._arena.counted(part.place) for part in self.counted],
            sum(part.examples == 0 for part in self.parts),
            [part.examples for part in self.counted] if weighting == Weighting.EXAMPLES else None,
            version,
        )
