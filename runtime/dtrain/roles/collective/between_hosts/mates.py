"""The replicas of one host, as the one that speaks for it tells the other hosts of them."""

from collections.abc import Callable, Sequence, Set

from dtrain.collectives.board import bits, ranks_in
from dtrain.messages.between_hosts import Seat
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.host_steps import HostSteps


class Mates:
    """Those that live, the one that speaks first, and whether others wait to take part."""

    def __init__(
        self, arena: Arena, seats: Sequence[Seat], steps: HostSteps, name_of: Callable[[int], str]
    ) -> None:
        """Begin with the replicas that all hosts know of; `name_of` has the task of a rank."""
        self._arena, self._board = arena, arena.board
        self._seats = list(seats)
        self._steps = steps
        self._name_of = name_of
        self._joining = 0

    def look(self, number: int, dead: Set[int]) -> None:
        """Say who takes part in round `number`, and whether others wait for the next one.

        One that was no member for a round has ended: the next one of its rank has another address.
        """
        members = [rank for rank in ranks_in(self._board.members[number % 2]) if rank not in dead]
        host = self._seats[0].host
        seats = [seat for seat in self._seats if seat.rank in members]
        known = {seat.rank for seat in seats}
        seats += [
            Seat(rank=rank, task=self._name_of(rank), address=self._arena.address(rank), host=host)
            for rank in members
            if rank not in known
        ]
        if seats != self._seats:
            self._seats = seats
            self._steps.seated(seats)
        waiting = ~bits(members)
        for rank in members:
            waiting &= self._board.offered[rank]
        joining = number if waiting else 0
        if joining != self._joining:
            self._joining = joining
            self._steps.joining(number - 1, joining=bool(joining))
