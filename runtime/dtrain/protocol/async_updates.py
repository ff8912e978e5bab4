"""Asynchronous updates: who may push next, so that the last step is exact and nobody runs too far ahead.

    1. A replica pushes only with a ticket, and a ticket allows one push; ps:0 gives them with its answers.
    2. Accepted pushes plus tickets in hand never exceed `max_steps`: the global step reaches it exactly, on every server.
    3. A ticket comes back when its holder is lost or its push is not accepted, and goes to whoever waits.
    4. Warm-up: while fewer than `warmup_steps` pushes are accepted, only rank 0 gets tickets (rule 4).
    5. No ticket leads beyond the version that the leader holds: while it changes something, and at the ends of epochs.
    6. Bounded staleness (SSP, s >= 1): a replica gets a ticket only while it is at most s pushes ahead of the slowest live
       one. A replica that joins starts at the slowest one's clock; one that is lost holds nobody back.

Every server applies a push on arrival; that part needs no decision in common. Sources: Ho et al. 2013 (SSP); DistBelief
(warm-up with one replica).
"""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class TicketGate:
    """ps:0's side of an asynchronous run.

    Attributes:
        accepted: the global step.
        max_steps: where training ends.
        staleness_bound: s of SSP, or None.
        until: the version that the leader holds, or None.
        leader: the leader's rank; None if it does not train.
        clocks: accepted pushes of each rank, counted from where it joined.
    """

    accepted: int
    max_steps: int
    warmup_steps: int = 0
    staleness_bound: int | None = None
    until: int | None = None
    leader: int | None = None
    holders: set[int] = field(default_factory=set)
    clocks: dict[int, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the last step has been accepted."""
        return self.accepted >= self.max_steps

    @property
    def held_back(self) -> bool:
        """Whether the next version waits for the leader."""
        return self.until is not None and self.accepted >= self.until

    def hold(self) -> int:
        """Give no more tickets; returns the version after every push that is under way.

        The leader, who asks for it, is not about to push: its ticket is no push under way.
        """
        self.until = self.accepted + len(self.holders - {self.leader})
        return self.until

    def end_at(self, version: int) -> None:
        """This version is the last one; the leader's ticket comes back."""
        self.max_steps = version
        if self.leader is not None:
            self.holders.discard(self.leader)

    def possible(self, live: Collection[int]) -> bool:
        """Whether any of the ranks that are alive may make the next version, now or when others have made theirs."""
        return 0 in live if self.accepted < self.warmup_steps else bool(live)

    def join(self, rank: int) -> None:
        """A replica takes part from now on (again)."""
        if rank not in self.clocks:
            self.clocks[rank] = min(self.clocks.values(), default=0)

    def leave(self, rank: int) -> None:
        """A replica is lost or has left: its ticket comes back."""
        self.holders.discard(rank)
        self.clocks.pop(rank, None)

    def request(self, rank: int) -> bool:
        """Give `rank` a ticket if the rules allow it now. Asking again with a ticket in hand changes nothing."""
        if rank in self.holders:
            return True
        under_way = self.accepted + len(self.holders)
        end = self.max_steps if self.until is None else min(self.until, self.max_steps)
        if under_way >= end or (rank != 0 and self.accepted < self.warmup_steps):
            return False
        self.join(rank)
        if self.staleness_bound is not None and self.clocks[rank] > min(self.clocks.values()) + self.staleness_bound:
            return False
        self.holders.add(rank)
        return True

    def settle(self, rank: int, accepted: bool) -> None:
        """The push that `rank`'s ticket was for has arrived."""
        self.holders.discard(rank)
        if accepted:
            self.accepted += 1
            # One that has left meanwhile has no clock, and joins at the slowest one's when it asks again.
            if rank in self.clocks:
                self.clocks[rank] += 1

    def awaited(self, rank: int) -> Collection[int]:
        """Whom `rank` waits for when `request` says no."""
        if self.staleness_bound is not None and rank in self.clocks:
            slowest = min(self.clocks.values())
            behind = [r for r, clock in self.clocks.items() if clock == slowest and r != rank]
            if self.clocks[rank] > slowest + self.staleness_bound:
                return sorted(behind)
        if rank != 0 and self.accepted < self.warmup_steps:
            return [0]
        return sorted(self.holders)
