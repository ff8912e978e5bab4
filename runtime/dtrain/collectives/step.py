"""The phases of a step among replicas that share memory, and the slices that each of them works on."""

from enum import Enum


class Phase(Enum):
    """Work on every slice, all of which is done before the next phase begins."""

    MEANS = "means"
    """Make the mean over several hosts, and bring the rows of tables."""
    SQUARES = "squares"
    """Add up squares of the gradient, for a limit of its norm."""
    ROWS = "rows"
    """Make new rows beside tables that are there once."""
    NOTE = "note"
    """Write down, at each host, what makes the step: nothing else can once rows are carried."""
    UPDATE = "update"
    """Make all else of the next version, and carry new rows into their tables."""


def share(blocks: int, slices: int, number: int) -> range:
    """Return which of so many blocks make up slice `number` of `slices`."""
    return range(blocks * number // slices, blocks * (number + 1) // slices)
