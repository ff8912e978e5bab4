"""The members of each round, and how a replica becomes one.

The rule *Members* (docs/design/collectives.md#members). The owner or heir of slice 0 writes who takes part in
the next round. Where too few are left and the spec says to wait, the lowest live member adds those who come.
"""

from collections.abc import Sequence, Set

from dtrain.collectives.board import Board, bits, ranks_in
from dtrain.collectives.step import heir
from dtrain.wire.one_host.synchronization import Bells


class Membership:
    """The members, as one of them sees and changes them."""

    def __init__(self, board: Board, bells: Bells, rank: int) -> None:
        self._board = board
        self._bells = bells
        self._rank = rank

    def publish(self) -> None:
        """Say which replicas that wait this one can ring."""
        self._board.offered[self._rank] = bits(self._bells.offered)

    def of(self, number: int) -> tuple[int, ...]:
        """Return the members of a round, ascending."""
        return ranks_in(self._board.members[number % 2])

    def prepare(self, number: int, members: Sequence[int]) -> None:
        """Write the members of round `number`: the live ones of the round before, and one that waits."""
        live = [rank for rank in members if rank not in self._bells.dead]
        self._write(number, live, self._newcomer(members, live))

    def add(self, number: int, members: Sequence[int]) -> None:
        """Add to the members of a round that nobody has begun, if this replica is the lowest live one."""
        if heir(members, 0, self._bells.dead) == self._rank:
            live = [rank for rank in members if rank not in self._bells.dead]
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
        """Ring new members from now on."""
        for rank in members:
            if rank not in known and rank != self._rank:
                self._bells.take_up(rank)
