"""A program's coordinator in one process: how it begins, and what it waits for."""

from typing import Protocol

from dtrain.roles.coordinator.service import ClosureService
from dtrain.strategies.coordinator.functions import ProgramNames


class Coordination(Protocol):
    """The coordinator's side, once the program has first called it; other tasks never return from there.

    Attributes:
        names: of the program's functions.
        service: the queue of closures.
    """

    names: ProgramNames
    service: ClosureService

    def end(self, *, farewell: bool) -> None:
        """End the program's part; with `farewell` no process of the coordinator will come any more."""


class Coordinates(Protocol):
    """A strategy that can have a coordinator."""

    has_coordinator: bool
    coordination: Coordination | None

    def coordinate(self) -> Coordination:
        """Begin to coordinate, in the coordinator; a worker serves here, and raises SystemExit(0) at the end,
        as an evaluator does at once.
        """
