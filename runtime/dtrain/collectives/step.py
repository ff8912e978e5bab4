"""The machine of one step among the replicas of a host: words and the dead, to the next action; successors.

The rule *One step* (docs/design/collectives.md#one-step). A round is an attempt at a step: it makes a
version, or, where every gradient is refused or empty, passes its batch over.

1. Part p of a round with members M belongs to M[p mod |M|], slice s to M[s]; both fall to successors.
2. A replica computes its parts and says so; then it waits until every part is complete, and every member has
   arrived or is dead. What stands on the board about the parts is then the same for all.
3. It takes its slice through the phases of the round and waits, after each, until all slices are through.
   Those of the dead are begun anew by their successors. The last phase is the update, block by block
   (`parameters.updater`).

Where there are several hosts, a replica computes of those parts that are due at its host, and waits until the
mean over all hosts is here; what the board says of all parts has then been written for it.

A round that the leader makes void has no gradients: all arrive, and the batch is computed again in the next
one.

No replica writes a gradient of the next round before all slices are finished, or a slice before all
gradients are complete. No message is exchanged but the doorbells that wake those who wait.

The rule *Successors* (docs/design/collectives.md#successors): what belongs to a member falls to the next live
one in the order of ranks, after the last to the first. A process whose socket is at its end is gone for good
and writes nothing more. So only one replica can find that all replicas before it are gone.
"""

from collections.abc import Container, Sequence, Set
from enum import Enum

import msgspec

from dtrain.collectives.board import Board, Column, ranks_in


class Phase(Enum):
    """Work on every slice, all of which is done before the next phase begins."""

    SQUARES = "squares"
    """Add up squares of the gradient, for a limit of its norm."""
    ROWS = "rows"
    """Make new rows beside tables that are there once."""
    UPDATE = "update"
    """Make all else of the next version, and carry new rows into their tables."""


class Compute(msgspec.Struct, frozen=True):
    """Compute the gradient of a part."""

    part: int


class Arrive(msgspec.Struct, frozen=True):
    """Say that this replica has nothing more to compute now, and ring."""


class TakeStock(msgspec.Struct, frozen=True):
    """Read what the board says about the round, which is final now, and call `SharedStep.go_through`."""


class WorkOn(msgspec.Struct, frozen=True):
    """Bring a slice to the end of a phase, from where it stands."""

    phase: Phase
    number: int


class WaitFor(msgspec.Struct, frozen=True):
    """Wait for these ranks, which owe `what`, until a notification or a death."""

    ranks: tuple[int, ...]
    what: str


class Made(msgspec.Struct, frozen=True):
    """Go on: the round is over for every member."""


Action = Compute | Arrive | TakeStock | WorkOn | WaitFor | Made
MADE = Made()
ARRIVE = Arrive()
TAKE_STOCK = TakeStock()


class SharedStep:
    """One round as one member sees it."""

    def __init__(
        self,
        board: Board,
        number: int,
        members: Sequence[int],
        rank: int,
        parts: Sequence[int],
        *,
        several_hosts: bool = False,
        alone: bool = False,
    ) -> None:
        """Begin a round.

        Args:
            parts: the places of the parts of this round, ascending, of 0 to N0 - 1.
            alone: whether the first member computes every part.
        """
        self._board = board
        self._number = number
        self._members = members
        self._rank = rank
        self._several_hosts = several_hosts
        self._computing = 1 if alone else len(members)
        self._open_parts = list(parts)
        self._open_slices = list(range(len(members)))
        self._phases: list[Phase] | None = None

    def go_through(self, *phases: Phase) -> None:
        """Take every slice through these phases, and the update at last."""
        self._phases = [*phases, Phase.UPDATE]

    def owner(self, part: int, dead: Set[int]) -> int:
        return successor(self._members, part % self._computing, dead)

    def is_due(self, part: int) -> bool:
        """Return whether this host is to compute a part, as far as it knows."""
        return not self._several_hosts or part in self._due()

    def next(self, dead: Set[int]) -> Action:
        """Return what to do now. A member in `dead` had written its last word before this is called."""
        if self._phases is None:
            return self._await_gradients(dead) or TAKE_STOCK
        while self._phases:
            action = self._work(self._phases[0], dead)
            if action is not None:
                return action
            del self._phases[0]
            self._open_slices = list(range(len(self._members)))
        return MADE

    def _await_gradients(self, dead: Set[int]) -> Action | None:
        board, number, members = self._board, self._number, self._members
        if self._open_parts:
            ready = board.ready.read()
            is_void = board.void[0] == number
            self._open_parts = [part for part in self._open_parts if ready[part] < number and not is_void]
        here: Sequence[int] = self._open_parts
        if self._several_hosts and board.summed[0] < number:
            due = self._due()
            here = [part for part in here if part in due]
        owners = {part: self.owner(part, dead) for part in here}
        for part, owner in owners.items():
            if owner == self._rank:
                return Compute(part)
        arrived = board.arrived.read()
        if arrived[self._rank] < number:
            return ARRIVE
        if owners:
            parts = ", ".join(str(part) for part in owners)
            return WaitFor(tuple(sorted(set(owners.values()))), f"gradient of part {parts}")
        if self._several_hosts and board.summed[0] < number:
            return WaitFor((), "sum over all hosts")
        absent = tuple(rank for rank in members if rank not in dead and arrived[rank] < number)
        return WaitFor(absent, "arrival") if absent else None

    def _due(self) -> Sequence[int]:
        board, number = self._board, self._number
        return ranks_in(board.due[number % 2]) if board.due_of[0] >= number else ()

    def _work(self, phase: Phase, dead: Set[int]) -> Action | None:
        number, members, through = self._number, self._members, through_phase(self._board, phase).read()
        self._open_slices = [each for each in self._open_slices if through[each] < number]
        owners = {each: successor(members, each, dead) for each in self._open_slices}
        mine = [each for each, owner in owners.items() if owner == self._rank]
        if mine:  # its own before those of others
            return WorkOn(phase, min(mine, key=lambda each: members[each] != self._rank))
        if owners:
            return WaitFor(tuple(sorted(set(owners.values()))), f"{phase.value} of its slice")
        return None


def through_phase(board: Board, phase: Phase) -> Column:
    """Return the words that say, by slice, of which round this phase is over."""
    match phase:
        case Phase.SQUARES:
            return board.squared
        case Phase.ROWS:
            return board.made
        case Phase.UPDATE:
            return board.fin


def successor(order: Sequence[int], place: int, dead: Container[int]) -> int:
    """Return the rank that has what belongs to `order[place]`; one of `order` must be alive."""
    for turn in range(len(order)):
        rank = order[(place + turn) % len(order)]
        if rank not in dead:
            return rank
    raise AssertionError("a replica that asks is alive itself")


def share(blocks: int, slices: int, number: int) -> range:
    """Return which of so many blocks make up slice `number` of `slices`."""
    return range(blocks * number // slices, blocks * (number + 1) // slices)
